#pragma once
// Softmax over the rows of attention scores.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

/// Attention scores of some queries: `matrices` of [rows, columns], of which the rows are those of queries first,
/// first + 1, … Causal: query q sees columns 0…q.
struct ScoreTile {
  std::size_t matrices, rows, columns;
  std::size_t first = 0;
  bool causal = false;
};
/// softmax(scale · x) of each row of x[matrices, rows, columns] in place; what a query does not see becomes 0.
template <class T>
void softmax_forward(Context& context, T* x, const ScoreTile& tile, float scale);
/// dp[matrices, rows, columns] becomes the gradient with respect to x, in place; p is what softmax_forward() left.
template <class T>
void softmax_backward(Context& context, const T* p, T* dp, const ScoreTile& tile, float scale);
/// Both, one after the other: each row while it is at hand.
template <class T>
void softmax_forward_backward(Context& context, T* x, T* dp, const ScoreTile& tile, float scale);

}  // namespace oomlab::nn
