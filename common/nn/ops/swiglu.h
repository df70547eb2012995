#pragma once
// SwiGLU, the gated activation of llama's MLP.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

/// SwiGLU (Shazeer, 2020): y[r, i] = silu(gate) · up, gate = gate_up[r, i], up = gate_up[r, hidden + i], of gate_up
/// [rows, 2 · hidden]; silu(x) = x / (1 + e^−x). Rows of y are y_stride elements apart; y may be gate_up, with a stride
/// of 2 · hidden.
template <class T>
void swiglu_forward(Context& context, const T* gate_up, T* y, std::size_t y_stride, std::size_t rows,
                    std::size_t hidden);
/// gate_up becomes its gradient, in place; dy [rows, hidden].
template <class T>
void swiglu_backward(Context& context, const T* dy, T* gate_up, std::size_t rows, std::size_t hidden);

}  // namespace oomlab::nn
