#pragma once
// Images brought to a higher resolution without arithmetic: each pixel becomes factor × factor equal ones (bilinear:
// nn/ops/upsample.h; learned: nn/ops/transposed.h). Images are channels last (nn/ops/convolution.h).
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

/// y[batch, factor · height, factor · width, channels]: pixel (i, j) is x's (i / factor, j / factor). The same as
/// PyTorch's interpolate(mode="nearest") with a whole factor. Throws std::invalid_argument for a factor of 0.
template <class T>
void nearest_forward(Context& context, const T* x, T* y, std::size_t batch, std::size_t height, std::size_t width,
                     std::size_t channels, std::size_t factor);
/// dx[batch, height, width, channels] is overwritten: each of its pixels gathers the factor² that it became.
template <class T>
void nearest_backward(Context& context, const T* dy, T* dx, std::size_t batch, std::size_t height, std::size_t width,
                      std::size_t channels, std::size_t factor);

}  // namespace oomlab::nn
