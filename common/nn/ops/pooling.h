#pragma once
// Pooling: windows of pixels, and whole images. Images are channels last,
// [batch, height, width, channels] (nn/ops/convolution.h), so most of it is matrices [pixels, channels].
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"
#include "nn/ops/convolution.h"

namespace oomlab::nn {

/// Pooling: each channel on its own, windows of kernel × kernel pixels. Padding is left out: the maximum is over the
/// pixels that exist, and so is the mean (count_include_pad = False). `which` [output elements] keeps the maximum's
/// place in its window, one byte each (null: not kept, for inference). Backward overwrites dx, and reads the `which`
/// that forward wrote. Throws std::invalid_argument unless in_channels = out_channels, the kernel is at most 15 and the
/// padding at most half of it.
template <class T>
void max_pool_forward(Context& context, const ConvolutionShape& shape, const T* x, T* y, unsigned char* which);
/// dx [batch, height, width, channels] is overwritten with dy [batch, out height, out width, channels] at the maxima.
template <class T>
void max_pool_backward(Context& context, const ConvolutionShape& shape, const T* dy, const unsigned char* which, T* dx);
/// y [batch, out height, out width, channels] = the means of the windows.
template <class T>
void average_pool_forward(Context& context, const ConvolutionShape& shape, const T* x, T* y);
/// dx [batch, height, width, channels] is overwritten with each window's share of dy.
template <class T>
void average_pool_backward(Context& context, const ConvolutionShape& shape, const T* dy, T* dx);

/// y[batch, channels] (+)= scale · the sum over an image's pixels; scale 1 / pixels makes it the mean.
template <class T>
void global_pool_forward(Context& context, const T* x, T* y, std::size_t batch, std::size_t pixels,
                         std::size_t channels, float scale, bool accumulate = false);
/// dx[batch, pixels, channels] = scale · dy[batch, channels].
template <class T>
void global_pool_backward(Context& context, const T* dy, T* dx, std::size_t batch, std::size_t pixels,
                          std::size_t channels, float scale);

}  // namespace oomlab::nn
