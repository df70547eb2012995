#pragma once
// The operators that the models are made of, forward and backward. Stored as T (float, __half or __nv_bfloat16),
// computed and added up in FP32; matrices are row-major:
// activations [batch, width], weights [out, in], so a linear layer is y = x Wᵀ + b.
//
// Every operator queues its work on the context's stream and allocates nothing. Sums are taken in an order
// that depends on the shape and the block size only: a repeated run gives the same bits.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "memory/context.h"
#include "plan/model/activation.h"

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

/// The same for one matrix without gaps.
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
/// The same plus bias[out], rounded once: the bias lies in y first, and the product is added to it.
template <class T>
void linear_bias_forward(Context& context, const T* x, const T* weight, const T* bias, T* y, std::size_t batch,
                         std::size_t in, std::size_t out);
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

/// y = activation(y + bias) in place, one pass over [rows, width]. bias may be null.
template <class T>
void bias_activation(Context& context, T* y, const std::type_identity_t<T>* bias, std::size_t rows, std::size_t width,
                     Activation activation);
/// z += bias in place and y = activation(z), one pass: keeps what the backward of GELU needs. bias may be
/// null.
template <class T>
void bias_activation_keep(Context& context, T* z, const std::type_identity_t<T>* bias, T* y, std::size_t rows,
                          std::size_t width, Activation activation);
/// dy becomes dz = dy ⊙ activation'(…) in place. `saved` is what the derivative is computed from: ReLU the
/// output y (or z: both have the same sign), hard sigmoid the output y, GELU and hard swish the pre-activation z; none:
/// not read, may be null.
template <class T>
void activation_backward(Context& context, T* dy, const std::type_identity_t<T>* saved, std::size_t count,
                         Activation activation);
/// z becomes dz = dy ⊙ gelu'(z): for where dy's memory is needed sooner than z's.
template <class T>
void gelu_backward_over(Context& context, const T* dy, T* z, std::size_t count);
/// sums[width] (+)= the column sums of x[rows, width].
template <class T>
void column_sum(Context& context, const T* x, std::type_identity_t<T>* sums, std::size_t rows, std::size_t width,
                bool accumulate = false);

/// Softmax cross-entropy, forward and backward in one kernel: row_loss[r] = −log
/// softmax(logits[r])[labels[r]], and logits become (softmax − one-hot) · gradient_scale in place. Labels
/// must lie in 0…classes−1.
void softmax_cross_entropy(Context& context, float* logits, const int* labels, float* row_loss, std::size_t rows,
                           std::size_t classes, float gradient_scale);
/// *total (+)= scale · the sum of x[count]; `total` is on the device.
void scaled_sum(Context& context, const float* x, std::size_t count, float scale, float* total,
                bool accumulate = false);
/// *correct (+)= the number of rows whose largest logit (the first, when equal) is at the label.
void count_correct(Context& context, const float* logits, const int* labels, std::size_t rows, std::size_t classes,
                   unsigned long long* correct, bool accumulate = false);

/// values[i] = bound · u, u uniform in [−1, 1), a hash of (seed, stream, i) alone: the same bits for any
/// launch shape and on any backend.
template <class T>
void fill_uniform(Context& context, T* values, std::size_t count, float bound, std::uint64_t seed,
                  std::uint64_t stream);
/// Some rows and columns of a matrix.
struct MatrixPart {
  std::size_t rows, columns;  ///< of this part
  std::size_t first_row = 0, first_column = 0;
  std::size_t all_columns;  ///< of the whole matrix
};
/// The values that fill_uniform() gives the whole matrix, of this part.
template <class T>
void fill_uniform_part(Context& context, T* values, const MatrixPart& part, float bound, std::uint64_t seed,
                       std::uint64_t stream);
/// values[i] = value.
template <class T>
void fill(Context& context, T* values, std::size_t count, float value);

/// FNV-1a over the 32-bit words of device memory (and the bytes of the rest), copied to the host in pieces of at most
/// 1 MiB (waits for the stream). `hash` continues one over several buffers. 0 in plan mode.
inline constexpr std::uint64_t kFingerprintStart = 0xcbf29ce484222325ull;
std::uint64_t fingerprint(Context& context, const void* data, std::size_t bytes,
                          std::uint64_t hash = kFingerprintStart);

}  // namespace oomlab::nn
