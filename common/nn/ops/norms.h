#pragma once
// Norms of rows: layer norm and RMS norm (batch norm, which is over rows: nn/ops/batch_norm.h).
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>
#include <type_traits>

#include "memory/context.h"

namespace oomlab::nn {

/// y = (x − mean) · rstd · gamma + beta for each row of [rows, width]; mean[rows] and rstd[rows] are kept for the
/// backward pass; null: they are not. y may be null: then only these are computed (Ba, Kiros and Hinton, 2016).
template <class T>
void layer_norm_forward(Context& context, const T* x, const T* gamma, const T* beta, std::type_identity_t<T>* y,
                        float* mean, float* rstd, std::size_t rows, std::size_t width);
/// y[rows, width] from x and the kept mean and rstd: the bits that layer_norm_forward() gave, for a fraction of its
/// work.
template <class T>
void layer_norm_recompute(Context& context, const T* x, const float* mean, const float* rstd, const T* gamma,
                          const T* beta, T* y, std::size_t rows, std::size_t width);
/// dx[rows, width] += the gradient with respect to x (a residual has its own there already; `add` false overwrites). dx
/// may be dy.
template <class T>
void layer_norm_backward_input(Context& context, const T* dy, const T* x, const float* mean, const float* rstd,
                               const T* gamma, T* dx, std::size_t rows, std::size_t width, bool add);
/// dgamma[width] and dbeta[width] (+)= the gradients with respect to gamma and beta.
template <class T>
void layer_norm_backward_weight(Context& context, const T* dy, const T* x, const float* mean, const float* rstd,
                                T* dgamma, T* dbeta, std::size_t rows, std::size_t width, bool accumulate = false);

/// y = x · rstd · gamma for each row of [rows, width], rstd = 1 / √(mean(x²) + epsilon) (Zhang and Sennrich, 2019).
/// rstd[rows] is kept for the backward pass; null: it is not. y may be x.
template <class T>
void rms_norm_forward(Context& context, const T* x, const T* gamma, T* y, float* rstd, std::size_t rows,
                      std::size_t width, float epsilon);
/// y[rows, width] from x and the kept rstd: the bits that rms_norm_forward() gave, for a fraction of its work.
template <class T>
void rms_norm_recompute(Context& context, const T* x, const float* rstd, const T* gamma, T* y, std::size_t rows,
                        std::size_t width);
/// dx[rows, width] += the gradient with respect to x (a residual has its own there already; `add` false overwrites). dx
/// may be dy.
template <class T>
void rms_norm_backward_input(Context& context, const T* dy, const T* x, const float* rstd, const T* gamma, T* dx,
                             std::size_t rows, std::size_t width, bool add);
/// dgamma[width] (+)= the gradient with respect to gamma.
template <class T>
void rms_norm_backward_weight(Context& context, const T* dy, const T* x, const float* rstd, T* dgamma, std::size_t rows,
                              std::size_t width, bool accumulate = false);

}  // namespace oomlab::nn
