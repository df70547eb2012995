#pragma once
// Products of matrices, through cuBLAS, and the linear layer made of them: y = x Wᵀ + b. Matrices are row-major:
// activations [batch, width], weights [out, in].
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>
#include <type_traits>

#include "memory/context.h"

namespace oomlab::nn {

/// A matrix inside a larger one: where it starts, and how far apart its rows are, in elements.
template <class T>
struct Strided {
  T* data;
  std::size_t row_stride;     ///< elements from a row to the next one
  std::size_t matrix_stride;  ///< elements from a matrix of a batch to the next one; 0 where there is one
};

/// C[m, n] = alpha · op(A) op(B) + beta · C for `count` matrices, all row-major, stored as T and added up in FP32;
/// op(X) is X, or Xᵀ when transposed:
/// A is [m, k] or [k, m], B is [k, n] or [n, k] in memory. C may be FP32 where A and B are shorter: what several
/// products add up to is then rounded once. Through cuBLAS. Throws std::length_error when a dimension does not fit the
/// 32-bit interface; in plan mode, where nothing is computed, such a product is accepted.
template <class T, class Out = T>
void gemm_strided(Context& context, bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
                  float alpha, Strided<const T> a, Strided<const T> b, float beta, Strided<std::type_identity_t<Out>> c,
                  std::size_t count);

/// The same for one matrix without gaps: C[m, n] = alpha · op(A) op(B) + beta · C.
template <class T>
void gemm(Context& context, bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
          float alpha, const T* a, const T* b, float beta, T* c) {
  gemm_strided<T>(context, transpose_a, transpose_b, m, n, k, alpha, {a, transpose_a ? m : k, 0},
                  {b, transpose_b ? k : n, 0}, beta, {c, n, 0}, 1);
}

/// y[batch, out] = x[batch, in] · weight[out, in]ᵀ. No bias: see bias_activation().
template <class T>
void linear_forward(Context& context, const T* x, const T* weight, T* y, std::size_t batch, std::size_t in,
                    std::size_t out) {
  gemm(context, false, true, batch, out, in, 1.0f, x, weight, 0.0f, y);
}
/// Every row of y[rows, width] becomes row[width].
template <class T>
void repeat_row(Context& context, const T* row, T* y, std::size_t rows, std::size_t width);
/// y[batch, out] = x · weightᵀ + bias[out], rounded once: the bias lies in y first, and the product is added to it.
template <class T>
void linear_bias_forward(Context& context, const T* x, const T* weight, const T* bias, T* y, std::size_t batch,
                         std::size_t in, std::size_t out) {
  repeat_row(context, bias, y, batch, out);
  gemm(context, false, true, batch, out, in, 1.0f, x, weight, 1.0f, y);
}
/// dx[batch, in] = dy[batch, out] · weight[out, in].
template <class T>
void linear_backward_input(Context& context, const T* dy, const T* weight, T* dx, std::size_t batch, std::size_t in,
                           std::size_t out) {
  gemm(context, false, false, batch, in, out, 1.0f, dy, weight, 0.0f, dx);
}
/// dweight[out, in] (+)= dyᵀ x, and dbias[out] (+)= the column sums of dy. `accumulate` adds to what is
/// there; otherwise the old contents are overwritten and need not be initialised.
template <class T>
void linear_backward_weight(Context& context, const T* dy, const T* x, T* dweight, std::type_identity_t<T>* dbias,
                            std::size_t batch, std::size_t in, std::size_t out, bool accumulate = false);

}  // namespace oomlab::nn
