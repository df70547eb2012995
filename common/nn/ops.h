#pragma once
// The operators that the models are made of, forward and backward. FP32; matrices are row-major:
// activations [batch, width], weights [out, in], so a linear layer is y = x Wᵀ + b.
//
// Every operator queues its work on the context's stream and allocates nothing. Sums are taken in an order
// that depends on the shape and the block size only: a repeated run gives the same bits.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "memory/context.h"

namespace oomlab::nn {

enum class Activation { none, relu, gelu };
/// "none", "relu", "gelu".
const char* name_of(Activation activation) noexcept;

/// C[m, n] = alpha · op(A) op(B) + beta · C, all row-major, through cuBLAS; op(X) is X, or Xᵀ when
/// transposed: A is [m, k] or [k, m], B is [k, n] or [n, k] in memory. Throws std::length_error when a
/// dimension does not fit the 32-bit interface; in plan mode, where nothing is computed, such a product is
/// accepted.
void gemm(Context& context, bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
          float alpha, const float* a, const float* b, float beta, float* c);

/// y[batch, out] = x[batch, in] · weight[out, in]ᵀ. No bias: see bias_activation().
void linear_forward(Context& context, const float* x, const float* weight, float* y, std::size_t batch, std::size_t in,
                    std::size_t out);
/// dx[batch, in] = dy[batch, out] · weight[out, in].
void linear_backward_input(Context& context, const float* dy, const float* weight, float* dx, std::size_t batch,
                           std::size_t in, std::size_t out);
/// dweight[out, in] (+)= dyᵀ x, and dbias[out] (+)= the column sums of dy. `accumulate` adds to what is
/// there; otherwise the old contents are overwritten and need not be initialised.
void linear_backward_weight(Context& context, const float* dy, const float* x, float* dweight, float* dbias,
                            std::size_t batch, std::size_t in, std::size_t out, bool accumulate = false);

/// y = activation(y + bias) in place, one pass over [rows, width]. bias may be null.
void bias_activation(Context& context, float* y, const float* bias, std::size_t rows, std::size_t width,
                     Activation activation);
/// z += bias in place and y = activation(z), one pass: keeps what the backward of GELU needs. bias may be
/// null.
void bias_activation_keep(Context& context, float* z, const float* bias, float* y, std::size_t rows, std::size_t width,
                          Activation activation);
/// dy becomes dz = dy ⊙ activation'(…) in place. `saved` is what the derivative is computed from: ReLU the
/// output y (or z: both have the same sign), GELU the pre-activation z; none: not read, may be null.
void activation_backward(Context& context, float* dy, const float* saved, std::size_t count, Activation activation);
/// sums[width] (+)= the column sums of x[rows, width].
void column_sum(Context& context, const float* x, float* sums, std::size_t rows, std::size_t width,
                bool accumulate = false);

/// Softmax cross-entropy, forward and backward in one kernel: row_loss[r] = −log
/// softmax(logits[r])[labels[r]], and logits become (softmax − one-hot) · gradient_scale in place. Labels
/// must lie in 0…classes−1.
void softmax_cross_entropy(Context& context, float* logits, const int* labels, float* row_loss, std::size_t rows,
                           std::size_t classes, float gradient_scale);
/// The forward half alone: logits are not changed.
void cross_entropy(Context& context, const float* logits, const int* labels, float* row_loss, std::size_t rows,
                   std::size_t classes);
/// *total (+)= scale · the sum of x[count]; `total` is on the device.
void scaled_sum(Context& context, const float* x, std::size_t count, float scale, float* total,
                bool accumulate = false);
/// *correct (+)= the number of rows whose largest logit (the first, when equal) is at the label.
void count_correct(Context& context, const float* logits, const int* labels, std::size_t rows, std::size_t classes,
                   unsigned long long* correct, bool accumulate = false);

/// values[i] = bound · u, u uniform in [−1, 1), a hash of (seed, stream, i) alone: the same bits for any
/// launch shape and on any backend.
void fill_uniform(Context& context, float* values, std::size_t count, float bound, std::uint64_t seed,
                  std::uint64_t stream);
/// values[i] = value.
void fill(Context& context, float* values, std::size_t count, float value);

}  // namespace oomlab::nn
