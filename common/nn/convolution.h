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

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

enum class ConvolutionWay { im2col, tiled, direct };
/// "im2col", "tiled", "direct".
const char* name_of(ConvolutionWay way) noexcept;

/// Sizes of a convolution. Padding is of zeros, and may differ between the sides: a tile of an image has none where the
/// image goes on. What lies below and on the right is what `out_height` and `out_width` need.
struct ConvolutionShape {
  std::size_t batch, height, width, in_channels, out_channels;
  std::size_t kernel, stride = 1;
  std::size_t pad_top = 0, pad_left = 0;
  std::size_t groups = 1;  ///< each sees in_channels / groups channels, and makes out_channels / groups
  std::size_t out_height, out_width;

  std::size_t in_pixels() const { return checked_product(batch, checked_product(height, width)); }
  std::size_t out_pixels() const { return checked_product(batch, checked_product(out_height, out_width)); }
  std::size_t input_elements() const { return checked_product(in_pixels(), in_channels); }
  std::size_t output_elements() const { return checked_product(out_pixels(), out_channels); }
  std::size_t weight_elements() const { return checked_product(out_channels, patch() / groups); }
  /// What one output pixel sees: kernel² · in_channels elements, a row of the column matrix.
  std::size_t patch() const { return checked_product(checked_product(kernel, kernel), in_channels); }
  /// Whether the image itself is the column matrix.
  bool is_pointwise() const {
    return kernel == 1 && stride == 1 && pad_top == 0 && pad_left == 0 && out_height == height && out_width == width;
  }
};

/// The usual convolution: `padding` on all sides, output (size + 2 · padding − kernel) / stride + 1, rounded down.
/// Throws std::invalid_argument, with one line, when a size is zero, the padded image is smaller than the kernel, or
/// the groups do not divide both numbers of channels; std::length_error, as every product of sizes here, when it does
/// not fit 64 bits.
ConvolutionShape convolution_shape(std::size_t batch, std::size_t height, std::size_t width, std::size_t in_channels,
                                   std::size_t out_channels, std::size_t kernel, std::size_t stride,
                                   std::size_t padding, std::size_t groups = 1);

/// What of the column matrix exists at once in the tiled way: at most a tenth of it and kColumnTileBytes.
///   - As a rule all columns for some output pixels: whole images, or where one is too many, output rows of one image,
///     one at least. Each tile reads the weights again.
///   - In FP32, where the weights are more than the output: some columns for all output pixels. Each tile adds to the
///     output, or to the input's gradient; in 16 bits every such sum would be rounded.
struct ColumnTile {
  std::size_t images, rows;  ///< images > 1 only with all of their rows
  std::size_t columns;  ///< fewer than patch() only with all images and rows; then a multiple of 4, at most in_channels
  std::size_t pixels(const ConvolutionShape& shape) const { return images * rows * shape.out_width; }
  std::size_t elements(const ConvolutionShape& shape) const { return checked_product(pixels(shape), columns); }
};
inline constexpr std::size_t kColumnTileBytes = std::size_t(16) << 20;
ColumnTile column_tile(const ConvolutionShape& shape, std::size_t element_bytes);

/// Workspace of a call, bytes as the ledger counts them: one buffer of columns (0: none), and FP32 sums of the weight's
/// gradient where tiles of 16-bit elements are added up (backward_weight alone).
struct ConvolutionWorkspace {
  std::size_t columns, sums;
};
ConvolutionWorkspace convolution_workspace(const ConvolutionShape& shape, ConvolutionWay way,
                                           std::size_t element_bytes);
/// Floating-point operations of the forward pass, and of each of the two gradients: 2 · P · K² · C / groups · out.
double convolution_flops(const ConvolutionShape& shape);

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
template <class T>
void depthwise_backward_input(Context& context, const ConvolutionShape& shape, const T* dy, const T* weight, T* dx);
template <class T>
void depthwise_backward_weight(Context& context, const ConvolutionShape& shape, const T* dy, const T* x, T* dweight,
                               bool accumulate = false);

}  // namespace oomlab::nn
