#pragma once
// Activations, with the bias before them: ReLU, GELU, hard sigmoid, hard swish, SiLU, quick and exact GELU. Matrices are
// row-major. Which of them a function takes follows from where models have them; std::invalid_argument for others.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>
#include <type_traits>

#include "memory/context.h"
#include "plan/model/activation.h"

namespace oomlab::nn {

/// y = activation(y + bias) in place, one pass over [rows, width]. bias may be null. Takes every activation.
template <class T>
void bias_activation(Context& context, T* y, const std::type_identity_t<T>* bias, std::size_t rows, std::size_t width,
                     Activation activation);
/// z[rows, width] += bias[width] in place and y[rows, width] = activation(z), one pass: keeps what the backward of GELU
/// needs. bias may be null. Takes ReLU, GELU and hard swish.
template <class T>
void bias_activation_keep(Context& context, T* z, const std::type_identity_t<T>* bias, T* y, std::size_t rows,
                          std::size_t width, Activation activation);
/// dy[count] becomes dz = dy ⊙ activation'(…) in place. `saved` [count] is what the derivative is computed from: ReLU
/// the output y (or z: both have the same sign), hard sigmoid the output y, GELU and hard swish the pre-activation z;
/// none: not read, may be null. Takes no others: a SiLU's gradient is that of the group norm before it
/// (nn/ops/group_norm.h), and text encoders, which have quick and exact GELU, are not trained.
template <class T>
void activation_backward(Context& context, T* dy, const std::type_identity_t<T>* saved, std::size_t count,
                         Activation activation);
/// z[count] becomes dz = dy[count] ⊙ gelu'(z): for where dy's memory is needed sooner than z's.
template <class T>
void gelu_backward_over(Context& context, const T* dy, T* z, std::size_t count);

/// The backward pass of an activation that follows a batch norm, without the norm's output v: dy becomes dy ⊙
/// activation'(v) in place, v = (z − mean) · inv_std · gamma + beta being computed again from the norm's input z. dy
/// and z are [rows, channels], the others [channels]. Takes what batch_norm_forward() takes.
template <class T>
void norm_activation_backward(Context& context, T* dy, const T* z, const float* gamma, const float* beta,
                              const float* mean, const float* inv_std, std::size_t rows, std::size_t channels,
                              Activation activation);

}  // namespace oomlab::nn
