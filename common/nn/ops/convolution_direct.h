#pragma once
// Convolutions without a column matrix: convolution.h's direct way. As there, for any shape but a pointwise one.

#include "nn/ops/convolution.h"

namespace oomlab::nn {

/// y [batch, out height, out width, out_channels] = the convolution of x with weight [out_channels, kernel, kernel,
/// in_channels / groups].
template <class T>
void direct_forward(Context& context, const ConvolutionShape& shape, const T* x, const T* weight, T* y);
/// dx [batch, height, width, in_channels] is overwritten; dy has the shape of y.
template <class T>
void direct_backward_input(Context& context, const ConvolutionShape& shape, const T* dy, const T* weight, T* dx);
/// dweight [out_channels, kernel, kernel, in_channels / groups] is overwritten, or added to with `accumulate`.
template <class T>
void direct_backward_weight(Context& context, const ConvolutionShape& shape, const T* dy, const T* x, T* dweight,
                            bool accumulate);

}  // namespace oomlab::nn
