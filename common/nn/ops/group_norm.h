#pragma once
// Group norm, and the SiLU behind it: over all pixels of a group of channels of an image (Wu and He, 2018). Images are
// channels last, [batch, height, width, channels] (nn/ops/convolution.h), so an image is a matrix [pixels, channels], of
// which a group is channels / groups columns.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>
#include <type_traits>

#include "memory/context.h"
#include "plan/model/activation.h"

namespace oomlab::nn {

/// Of x [batch, pixels, channels].
struct GroupNormShape {
  std::size_t batch, pixels, channels, groups;
  float eps = 1e-5f;  ///< diffusers: 1e-5 in a U-Net, 1e-6 before its attention and in an autoencoder
  Activation activation = Activation::none;  ///< none or silu
};

/// y = activation((x − mean) · rstd · gamma + beta), rstd = 1 / √(variance + eps), the variance divided by the number of
/// values. gamma and beta are [channels]. mean and rstd [batch, groups] are kept for the backward pass, and for
/// group_norm_recompute(); null: they are not. y may be x, or null: then only mean and rstd are computed. Which numbers
/// are added in which order depends on the shape and on T only: any block size gives the same bits.
/// Throws std::invalid_argument unless the groups divide the channels, for another activation, and for groups so wide
/// that a block has no shared memory for their sums (kGroupNormChannels).
template <class T>
void group_norm_forward(Context& context, const GroupNormShape& shape, const T* x, const T* gamma, const T* beta,
                        std::type_identity_t<T>* y, float* mean, float* rstd);
/// y from x and the kept mean and rstd: the bits that group_norm_forward() gave. Any pixels may be given by themselves: a
/// tile of an image with the statistics of the whole.
template <class T>
void group_norm_recompute(Context& context, const GroupNormShape& shape, const T* x, const float* mean,
                          const float* rstd, const T* gamma, const T* beta, T* y);
/// dx [batch, pixels, channels] += the gradient with respect to x, through the activation (`add` false overwrites). What
/// goes into the activation is computed again from x. dx may be dy.
template <class T>
void group_norm_backward_input(Context& context, const GroupNormShape& shape, const T* dy, const T* x,
                               const float* mean, const float* rstd, const T* gamma, const T* beta, T* dx, bool add);
/// dgamma[channels] and dbeta[channels] (+)= the gradients with respect to gamma and beta, through the activation.
template <class T>
void group_norm_backward_weight(Context& context, const GroupNormShape& shape, const T* dy, const T* x,
                                const float* mean, const float* rstd, const T* gamma, const T* beta, T* dgamma,
                                T* dbeta, bool accumulate = false);

/// Channels of the widest group.
inline constexpr std::size_t kGroupNormChannels = 4096;

}  // namespace oomlab::nn
