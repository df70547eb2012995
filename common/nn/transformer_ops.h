#pragma once
// The operators that a transformer adds to those of ops.h, forward and backward. T is how tensors are stored: float,
// __half or __nv_bfloat16; every sum, mean and exponential is FP32. Matrices are row-major; a row of activations is one
// position of one sequence, [batch · seq, width].
//
// As in ops.h: queued on the context's stream, nothing is allocated, and a repeated run gives the same bits.

#include <cstddef>
#include <type_traits>

#include "memory/context.h"

namespace oomlab::nn {

/// x[r] = token[tokens[r]] + position[r mod seq] + everywhere: x [rows, width], token [vocabulary, width], position
/// [seq, width] or null (rotary positions come later), everywhere [width] or null (a token type that all have).
/// Tokens must lie in 0…vocabulary−1.
template <class T>
void embedding_forward(Context& context, const int* tokens, const T* token, const std::type_identity_t<T>* position,
                       const std::type_identity_t<T>* everywhere, T* x, std::size_t rows, std::size_t seq,
                       std::size_t width);
/// dtoken[tokens[r]] += dx[r] for every row (a tied head has put its own gradient there before), and dposition, unless
/// null, (+)= the sums over the sequences. Without atomics, so that the order is always the same.
template <class T>
void embedding_backward(Context& context, const int* tokens, const T* dx, T* dtoken, std::type_identity_t<T>* dposition,
                        std::size_t rows, std::size_t seq, std::size_t width, bool accumulate_position = false);

/// y = (x − mean) · rstd · gamma + beta for each row; mean[rows] and rstd[rows] are kept for the backward pass. y may
/// be null: then only these are computed (Ba, Kiros and Hinton, 2016).
template <class T>
void layer_norm_forward(Context& context, const T* x, const T* gamma, const T* beta, std::type_identity_t<T>* y,
                        float* mean, float* rstd, std::size_t rows, std::size_t width);
/// y from x and the kept mean and rstd: the bits that layer_norm_forward() gave, for a fraction of its work.
template <class T>
void layer_norm_recompute(Context& context, const T* x, const float* mean, const float* rstd, const T* gamma,
                          const T* beta, T* y, std::size_t rows, std::size_t width);
/// dx += the gradient with respect to x (a residual has its own there already; `add` false overwrites). dx may
/// be dy.
template <class T>
void layer_norm_backward_input(Context& context, const T* dy, const T* x, const float* mean, const float* rstd,
                               const T* gamma, T* dx, std::size_t rows, std::size_t width, bool add);
/// dgamma[width] and dbeta[width] (+)= the gradients with respect to gamma and beta.
template <class T>
void layer_norm_backward_weight(Context& context, const T* dy, const T* x, const float* mean, const float* rstd,
                                T* dgamma, T* dbeta, std::size_t rows, std::size_t width, bool accumulate = false);

/// out = x + y + bias; out may be x or y. bias may be null.
template <class T>
void add_residual(Context& context, const T* x, const T* y, const std::type_identity_t<T>* bias, T* out,
                  std::size_t rows, std::size_t width);

/// Attention scores of some queries: `matrices` of [rows, columns], of which the rows are those of queries first,
/// first + 1, … Causal: query q sees columns 0…q.
struct ScoreTile {
  std::size_t matrices, rows, columns;
  std::size_t first = 0;
  bool causal = false;
};
/// softmax(scale · x) of each row in place; what a query does not see becomes 0.
template <class T>
void softmax_forward(Context& context, T* x, const ScoreTile& tile, float scale);
/// dp becomes the gradient with respect to x, in place; p is what softmax_forward() left.
template <class T>
void softmax_backward(Context& context, const T* p, T* dp, const ScoreTile& tile, float scale);
/// Both, one after the other: each row while it is at hand.
template <class T>
void softmax_forward_backward(Context& context, T* x, T* dp, const ScoreTile& tile, float scale);

/// Cross-entropy on logits[rows, classes], forward and backward in one kernel: row_loss[r] = −log
/// softmax(logits[r])[labels[r]], and logits become (softmax − one-hot) · gradient_scale in place. A negative label is
/// a row without a target: loss and gradient are 0. `scale_on_device`, where not null, is one more factor of the
/// gradient: a loss scale that the host need not know.
template <class T>
void cross_entropy_with_gradient(Context& context, T* logits, const int* labels, float* row_loss, std::size_t rows,
                                 std::size_t classes, float gradient_scale, const float* scale_on_device = nullptr);

/// The losses alone: logits are not changed.
template <class T>
void cross_entropy(Context& context, const T* logits, const int* labels, float* row_loss, std::size_t rows,
                   std::size_t classes);

}  // namespace oomlab::nn
