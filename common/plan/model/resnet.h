#pragma once
// Residual networks (He et al., "Deep Residual Learning for Image Recognition", 2015): names, units, sizes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/bytes.h"
#include "plan/model/convolution.h"

namespace oomlab::nn {

/// A convolution and its batch norm.
struct ConvolutionUnit {
  std::string name;                                ///< "stage 2 block 1 conv 1"
  std::uint64_t in, out, kernel, stride, padding;  ///< channels in and out; pixels
  std::uint64_t weights() const { return checked_product(checked_product(kernel, kernel), checked_product(in, out)); }
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
  /// Weights, gammas and betas, the head's weight and bias; running statistics do not count.
  std::uint64_t parameters() const;
  /// Every unit in order: the stem, then of each block the branch and the projection.
  std::vector<ConvolutionUnit> units() const;
};

/// Reads a model name:
///   resnet:STAGES-WIDTH   a 3 × 3 stem with stride 1, then stages of two basic blocks each, WIDTH · 2^i wide; every
///                         stage but the first halves the image; 3 channels, 10 classes; 1 to 12 stages, a
///                         width of 1 to 2^20
///   resnet18, resnet50    as published, for 3 channels and 1,000 classes (the stride of a bottleneck is on its 3 × 3)
/// Throws std::invalid_argument with one line that says what is allowed.
ResNetSpec parse_resnet(std::string_view text);

/// Sizes of everything that a batch goes through.
struct ResNetShapes {
  std::vector<ConvolutionShape> units;  ///< in the order of ResNetSpec::units()
  ConvolutionShape pool;                ///< of a pooled stem
  std::uint64_t last_pixels;            ///< of each image, in what the head averages
};
/// Throws std::invalid_argument, with one line, when a unit would see less than its kernel, std::length_error when a
/// figure does not fit 64 bits.
ResNetShapes shapes_of(const ResNetSpec& spec, std::uint64_t batch, InputSize size);
/// Throws std::invalid_argument, with one line, unless `elements` is the size of a batch of such images.
void require_input(const ResNetShapes& shapes, std::uint64_t elements);

}  // namespace oomlab::nn
