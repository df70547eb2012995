#pragma once
// Multi-layer perceptrons: names and widths.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/model/activation.h"

namespace oomlab::nn {

/// What a model is: input width, hidden widths, classes.
struct MlpSpec {
  std::string name;
  std::vector<std::uint64_t> widths;         ///< at least two, none zero
  Activation activation = Activation::relu;  ///< after every layer but the last

  std::size_t layers() const noexcept { return widths.size() - 1; }
  std::uint64_t inputs() const noexcept { return widths.front(); }
  std::uint64_t classes() const noexcept { return widths.back(); }
  /// Weights and biases. Throws std::length_error when that does not fit 64 bits.
  std::uint64_t parameters() const;
};

/// Reads a model name:
///   mlp                512-1024-2048-4096-8192-10, ReLU
///   mlp-small          64-128-64-10, ReLU: learns the digits in a few seconds
///   mlp-weights        512-2048-2048-10: wide layers meet, so most of its memory are weights and what belongs to them
///   mlp-activations    8192-8-8192-8-8192-8-8192-10: wide layers with narrow ones between them have few weights and
///                      large outputs, as convolutions have
///   mlp:IN-…-CLASSES   any widths, for example mlp:64-256-10; 256x4 is 256-256-256-256
/// Throws std::invalid_argument with one line that says what is allowed.
MlpSpec parse_model(std::string_view text);

}  // namespace oomlab::nn
