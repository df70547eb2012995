#pragma once
// What lighter networks need beside convolutions, norms and pools: activations behind a norm, channels that are joined,
// scaled, or brought to a higher resolution. Images are channels last, [batch, height, width, channels]
// (nn/convolution.h); "rows" are the pixels of a batch. Every operator queues its work on the context's stream and
// allocates nothing. Stored as T (float, __half or __nv_bfloat16), computed and added up in FP32.

#include <cstddef>

#include "memory/context.h"
#include "nn/ops.h"

namespace oomlab::nn {

/// The backward pass of an activation that follows a batch norm, without the norm's output v: dy becomes dy ⊙
/// activation'(v) in place, v = (z − mean) · inv_std · gamma + beta being computed again from the norm's input z.
template <class T>
void norm_activation_backward(Context& context, T* dy, const T* z, const float* gamma, const float* beta,
                              const float* mean, const float* inv_std, std::size_t rows, std::size_t channels,
                              Activation activation);

/// y[rows, a_channels + b_channels] = a and b side by side.
template <class T>
void concatenate_channels(Context& context, const T* a, const T* b, T* y, std::size_t rows, std::size_t a_channels,
                          std::size_t b_channels);
/// Its backward pass: da and db are overwritten.
template <class T>
void split_channels(Context& context, const T* dy, T* da, T* db, std::size_t rows, std::size_t a_channels,
                    std::size_t b_channels);

/// y[batch, factor · height, factor · width, channels], bilinear, corners not aligned: output pixel i lies at
/// max(0, (i + 1/2) / factor − 1/2) of the input; beyond the last pixel that one goes on. The same as PyTorch's
/// interpolate(mode="bilinear", align_corners=False). Throws std::invalid_argument for a factor of 0.
template <class T>
void upsample_forward(Context& context, const T* x, T* y, std::size_t batch, std::size_t height, std::size_t width,
                      std::size_t channels, std::size_t factor);
/// dx[batch, height, width, channels] is overwritten; each of its pixels gathers, so that a repeated run gives the same
/// bits.
template <class T>
void upsample_backward(Context& context, const T* dy, T* dx, std::size_t batch, std::size_t height, std::size_t width,
                       std::size_t channels, std::size_t factor);

/// y[batch, pixels, channels] = x ⊙ factors[batch, channels]; y may be x.
template <class T>
void scale_channels(Context& context, const T* x, const T* factors, T* y, std::size_t batch, std::size_t pixels,
                    std::size_t channels);
/// dfactors[batch, channels] = the sum of dy ⊙ x over an image's pixels.
template <class T>
void scale_channels_backward_factors(Context& context, const T* dy, const T* x, T* dfactors, std::size_t batch,
                                     std::size_t pixels, std::size_t channels);
/// dy becomes dx = dy ⊙ factors + share · dmean[batch, channels] in place: the gradient through the product, and
/// through a mean over the pixels (share = 1 / pixels) that the factors were made from.
template <class T>
void scale_channels_backward_input(Context& context, T* dy, const T* factors, const T* dmean, float share,
                                   std::size_t batch, std::size_t pixels, std::size_t channels);

}  // namespace oomlab::nn
