#pragma once
// Channels of images that are joined, split, shifted or scaled. Images are channels last,
// [batch, height, width, channels] (nn/ops/convolution.h), so images are matrices [pixels, channels].
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

/// y[rows, a_channels + b_channels] = a and b side by side.
template <class T>
void concatenate_channels(Context& context, const T* a, const T* b, T* y, std::size_t rows, std::size_t a_channels,
                          std::size_t b_channels);
/// Its backward pass: da[rows, a_channels] and db[rows, b_channels] are overwritten with the sides of dy.
template <class T>
void split_channels(Context& context, const T* dy, T* da, T* db, std::size_t rows, std::size_t a_channels,
                    std::size_t b_channels);

/// y[batch, pixels, channels] = x + shifts[batch, channels], one vector for all pixels of an image; y may be x. The
/// gradient of x is y's, that of the shifts its sum over the pixels: global_pool_forward() (nn/ops/pooling.h), scale 1.
template <class T>
void shift_channels(Context& context, const T* x, const T* shifts, T* y, std::size_t batch, std::size_t pixels,
                    std::size_t channels);

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
