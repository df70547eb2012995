#pragma once
// Images brought to a higher resolution. Images are channels last,
// [batch, height, width, channels] (nn/ops/convolution.h), so images are matrices [pixels, channels].
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

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

}  // namespace oomlab::nn
