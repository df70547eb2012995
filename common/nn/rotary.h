#pragma once
// The angles of rotary positions (plan/model/rotary.h).

#include <cstddef>

#include "plan/model/rotary.h"

namespace oomlab::nn {

/// Angle per position of each pair of a head, in FP32 as PyTorch computes them. A kernel's parameter.
struct RotaryFrequencies {
  float of[kRotaryDepth / 2];
};
/// Of heads of `depth` values. Throws std::invalid_argument for an odd depth, or one above kRotaryDepth.
RotaryFrequencies rotary_frequencies(const Rotary& rotary, std::size_t depth);

}  // namespace oomlab::nn
