#pragma once
// Residual networks (He et al., "Deep Residual Learning for Image Recognition", 2015): names, and what they are made of.
// network_of() (plan/model/network.h) makes a list of layers of one.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/model/convolution.h"

namespace oomlab::nn {

/// A convolution and its batch norm.
struct ConvolutionUnit {
  std::string name;                                ///< "stage 2 block 1 conv 1"
  std::uint64_t in, out, kernel, stride, padding;  ///< channels in and out; pixels
};
/// y = ReLU(branch(x) + shortcut(x)).
struct ResidualBlock {
  std::vector<ConvolutionUnit> branch;      ///< all but the last with a ReLU
  std::vector<ConvolutionUnit> projection;  ///< the shortcut: none, x itself, or one unit without a ReLU
};

struct ResNetSpec {
  std::string name;
  ConvolutionUnit stem;
  bool pooled = false;  ///< a 3 × 3 max pool with stride 2 and padding 1 behind the stem
  std::vector<ResidualBlock> blocks;
  std::uint64_t classes = 0;

  std::uint64_t in_channels() const noexcept { return stem.in; }
  /// Channels of the last block: what the head sees, averaged over all pixels.
  std::uint64_t features() const noexcept { return blocks.back().branch.back().out; }
};

/// Reads a model name:
///   resnet:STAGES-WIDTH   a 3 × 3 stem with stride 1, then stages of two basic blocks each, WIDTH · 2^i wide; every
///                         stage but the first halves the image; 3 channels, 10 classes; 1 to 12 stages, a
///                         width of 1 to 2^20
///   resnet18, resnet50    as published, for 3 channels and 1,000 classes (the stride of a bottleneck is on its 3 × 3)
/// Throws std::invalid_argument with one line that says what is allowed.
ResNetSpec parse_resnet(std::string_view text);

}  // namespace oomlab::nn
