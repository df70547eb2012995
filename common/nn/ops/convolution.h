#pragma once
// Convolutions of images, forward and backward, in three ways that differ in memory.
//
// Layout: images are [batch, height, width, channels], channels last (NHWC), so that one pixel's channels lie side by
// side; weights are [out_channels, kernel, kernel, in_channels / groups]. Then a row of the column matrix, what one
// output pixel sees, meets a row of the weights, and a convolution is a linear layer over output pixels. There is no
// bias: a batch norm follows. Stored as T (float, __half or __nv_bfloat16), added up in FP32.
//
// P = batch · out_height · out_width output pixels, K² · C / groups weights for each output channel.
//
//   way       column matrix at once          what it costs
//   im2col    P · K² · C elements            the input, copied K² times; one matrix product
//   tiled     column_tile() rows of it       the same copies and products, some output rows at a time
//   direct    none                           no matrix product: a kernel of ours reads the image where it lies
//
// A 1 × 1 convolution with stride 1 and no padding has no column matrix in any way: the image is one, and a matrix
// product multiplies it, in the direct way, too.

#include "memory/context.h"
#include "plan/model/convolution.h"

namespace oomlab::nn {

/// y[batch, out_height, out_width, out_channels] = the convolution of x[batch, height, width, in_channels]. Columns are
/// allocated for the call (category workspace, tag "columns"): throws OutOfMemory, then nothing is queued.
template <class T>
void convolution_forward(Context& context, const ConvolutionShape& shape, ConvolutionWay way, const T* x,
                         const T* weight, T* y);
/// dx[batch, height, width, in_channels] = the gradient of x, from dy[batch, out_height, out_width, out_channels]. dx
/// is overwritten, and must not overlap dy. Columns and errors as in forward.
template <class T>
void convolution_backward_input(Context& context, const ConvolutionShape& shape, ConvolutionWay way, const T* dy,
                                const T* weight, T* dx);
/// dweight[out_channels, kernel, kernel, in_channels / groups] = the weight's gradient, from dy and x; with
/// `accumulate` it is added to what is there. Columns and errors as in forward, and ConvolutionWorkspace::sums beside
/// the columns.
template <class T>
void convolution_backward_weight(Context& context, const ConvolutionShape& shape, ConvolutionWay way, const T* dy,
                                 const T* x, T* dweight, bool accumulate = false);

/// Depthwise: each channel is convolved with a filter of its own, groups = in_channels = out_channels
/// (std::invalid_argument otherwise). Allocates nothing: there is no column matrix. Here weights are [kernel, kernel,
/// channels], so that channels lie side by side, as in the image.
template <class T>
void depthwise_forward(Context& context, const ConvolutionShape& shape, const T* x, const T* weight, T* y);
/// dx [batch, height, width, channels] is overwritten.
template <class T>
void depthwise_backward_input(Context& context, const ConvolutionShape& shape, const T* dy, const T* weight, T* dx);
/// dweight [kernel, kernel, channels] is overwritten, or added to with `accumulate`.
template <class T>
void depthwise_backward_weight(Context& context, const ConvolutionShape& shape, const T* dy, const T* x, T* dweight,
                               bool accumulate = false);

}  // namespace oomlab::nn
