#pragma once
// The operators that a decoder of today adds to those of ops.h and transformer_ops.h: RMS norm, rotary positions,
// SwiGLU. T is how tensors are stored: float, __half or __nv_bfloat16; the arithmetic is FP32.
//
// As in ops.h: queued on the context's stream, nothing is allocated, and a repeated run gives the same bits. What a row
// becomes does not depend on how many others there are.

#include <cstddef>

#include "memory/context.h"
#include "nn/rotary.h"

namespace oomlab::nn {

/// y = x · rstd · gamma for each row, rstd = 1 / √(mean(x²) + epsilon) (Zhang and Sennrich, 2019). rstd[rows] is kept
/// for the backward pass; null: it is not. y may be x.
template <class T>
void rms_norm_forward(Context& context, const T* x, const T* gamma, T* y, float* rstd, std::size_t rows,
                      std::size_t width, float epsilon);
/// y from x and the kept rstd: the bits that rms_norm_forward() gave, for a fraction of its work.
template <class T>
void rms_norm_recompute(Context& context, const T* x, const float* rstd, const T* gamma, T* y, std::size_t rows,
                        std::size_t width);
/// dx += the gradient with respect to x (a residual has its own there already; `add` false overwrites). dx may be dy.
template <class T>
void rms_norm_backward_input(Context& context, const T* dy, const T* x, const float* rstd, const T* gamma, T* dx,
                             std::size_t rows, std::size_t width, bool add);
/// dgamma[width] (+)= the gradient with respect to gamma.
template <class T>
void rms_norm_backward_weight(Context& context, const T* dy, const T* x, const float* rstd, T* dgamma, std::size_t rows,
                              std::size_t width, bool accumulate = false);

/// At which position each row is: row r at r mod seq, or where `of_row` is not null at of_row[r] (on the device).
struct RowPositions {
  std::size_t seq = 1;
  const int* of_row = nullptr;
};
/// Turns the first `heads` heads of `depth` values of each row of x [rows, row_stride], in place: in rows of Q, K and V
/// those of Q and K, which lie side by side. `back` turns the other way: from the gradient of what was turned to that
/// of what was not.
template <class T>
void rotate_heads(Context& context, T* x, std::size_t row_stride, std::size_t rows, std::size_t heads,
                  std::size_t depth, const RotaryFrequencies& frequencies, RowPositions positions, bool back = false);

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
