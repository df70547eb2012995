#pragma once
// Convolutions without a column matrix: convolution.h's direct way. As there, for any shape but a pointwise one.

#include "nn/ops/convolution.h"

namespace oomlab::nn {

template <class T>
void direct_forward(Context& context, const ConvolutionShape& shape, const T* x, const T* weight, T* y);
template <class T>
void direct_backward_input(Context& context, const ConvolutionShape& shape, const T* dy, const T* weight, T* dx);
template <class T>
void direct_backward_weight(Context& context, const ConvolutionShape& shape, const T* dy, const T* x, T* dweight,
                            bool accumulate);

}  // namespace oomlab::nn
