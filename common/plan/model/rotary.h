#pragma once
// Rotary positions (Su et al., "RoFormer", 2021), half-split: value i of a head of d turns with value i + d/2, at
// position p by the angle p · theta^(−2i/d). (Llama's own files pair 2i with 2i + 1; Hugging Face's, and these, do
// not.)

#include <cstdint>

namespace oomlab::nn {

/// How a model turns the heads of Q and K.
struct Rotary {
  /// linear: every frequency divided by `factor` (Chen et al., 2023). llama3: wavelengths above original_positions /
  /// low are, those below original_positions / high are not, and those in between partly (Llama 3.1's configuration).
  enum class Scaling { none, linear, llama3 };
  double theta = 10000;
  Scaling scaling = Scaling::none;
  double factor = 1, low = 1, high = 4;
  std::uint64_t original_positions = 0;
  friend bool operator==(const Rotary&, const Rotary&) = default;
};

/// The widest head whose frequencies fit what a kernel is given.
inline constexpr std::uint64_t kRotaryDepth = 256;

}  // namespace oomlab::nn
