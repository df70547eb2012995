#pragma once
// Transposed convolution: an image brought to a higher resolution by learned weights (PyTorch's ConvTranspose2d). Forward
// it is what the backward pass of a convolution does to the gradient of its input, and the other way round; so these are
// the passes of nn/ops/convolution.h, with their columns and their errors.

#include "memory/context.h"
#include "nn/ops/convolution.h"

namespace oomlab::nn {

/// The convolution whose transpose enlarges images of height × width by `factor`, each pixel to a square of its own
/// (ConvTranspose2d with kernel = stride = factor, no padding): its input is the large image, of out_channels, and its
/// output the small one, of in_channels. Throws as convolution_shape(), and std::invalid_argument for a factor of 0.
ConvolutionShape transposed_shape(std::size_t batch, std::size_t height, std::size_t width, std::size_t in_channels,
                                  std::size_t out_channels, std::size_t factor);

/// y[batch, factor · height, factor · width, out_channels] from x[batch, height, width, in_channels] and weight
/// [in_channels, factor, factor, out_channels]: ConvTranspose2d's [in, out, h, w], channels last. No bias. y is overwritten.
template <class T>
void transposed_forward(Context& context, const ConvolutionShape& shape, ConvolutionWay way, const T* x,
                        const T* weight, T* y) {
  convolution_backward_input(context, shape, way, x, weight, y);
}
/// dx[batch, height, width, in_channels] is overwritten.
template <class T>
void transposed_backward_input(Context& context, const ConvolutionShape& shape, ConvolutionWay way, const T* dy,
                               const T* weight, T* dx) {
  convolution_forward(context, shape, way, dy, weight, dx);
}
/// dweight[in_channels, factor, factor, out_channels] (+)= the gradient.
template <class T>
void transposed_backward_weight(Context& context, const ConvolutionShape& shape, ConvolutionWay way, const T* dy,
                                const T* x, T* dweight, bool accumulate = false) {
  convolution_backward_weight(context, shape, way, x, dy, dweight, accumulate);
}

}  // namespace oomlab::nn
