#pragma once
// GEGLU, the gated activation of the MLPs in diffusers' transformer blocks.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

/// GEGLU (Shazeer, 2020): y[r, i] = value · gelu(gate), value = x[r, i], gate = x[r, width + i], of x [rows, 2 · width];
/// y [rows, width]. gelu(g) = g · Φ(g), exact, through the error function.
template <class T>
void geglu_forward(Context& context, const T* x, T* y, std::size_t rows, std::size_t width);
/// x becomes its gradient, in place; dy [rows, width].
template <class T>
void geglu_backward(Context& context, const T* dy, T* x, std::size_t rows, std::size_t width);

}  // namespace oomlab::nn
