#pragma once
// Rotary positions (plan/model/rotary.h): queries and keys are turned by angles that grow with the position.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"
#include "nn/ops/token_share.h"
#include "plan/model/rotary.h"

namespace oomlab::nn {

/// Angle per position of each pair of a head, in FP32 as PyTorch computes them. A kernel's parameter.
struct RotaryFrequencies {
  float of[kRotaryDepth / 2];
};
/// Of heads of `depth` values. Throws std::invalid_argument for an odd depth, or one above kRotaryDepth.
RotaryFrequencies rotary_frequencies(const Rotary& rotary, std::size_t depth);

/// At which position each row is: row r at that of token r mod tokens.seq, or where `of_row` is not null at of_row[r] (on
/// the device).
struct RowPositions {
  TokenShare tokens = {};
  const int* of_row = nullptr;
};
/// Turns the first `heads` heads of `depth` values of each row of x [rows, row_stride], in place: in rows of Q, K and V
/// those of Q and K, which lie side by side. `back` turns the other way: from the gradient of what was turned to that
/// of what was not.
template <class T>
void rotate_heads(Context& context, T* x, std::size_t row_stride, std::size_t rows, std::size_t heads,
                  std::size_t depth, const RotaryFrequencies& frequencies, RowPositions positions, bool back = false);

}  // namespace oomlab::nn
