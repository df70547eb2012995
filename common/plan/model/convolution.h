#pragma once
// Sizes of convolutions of images, and what their workspace takes in the three ways
// of nn/ops/convolution.h, which differ in memory.

#include <cstdint>

#include "plan/bytes.h"

namespace oomlab::nn {

/// Height and width of an image.
struct InputSize {
  std::uint64_t height, width;
};

enum class ConvolutionWay { im2col, tiled, direct };
/// "im2col", "tiled", "direct".
const char* name_of(ConvolutionWay way) noexcept;

/// Sizes of a convolution. Padding is of zeros, and may differ between the sides: a tile of an image has none where the
/// image goes on. What lies below and on the right is what `out_height` and `out_width` need.
struct ConvolutionShape {
  std::uint64_t batch, height, width, in_channels, out_channels;
  std::uint64_t kernel, stride = 1;
  std::uint64_t pad_top = 0, pad_left = 0;
  std::uint64_t groups = 1;  ///< each sees in_channels / groups channels, and makes out_channels / groups
  std::uint64_t out_height, out_width;

  std::uint64_t in_pixels() const { return checked_product(batch, checked_product(height, width)); }
  std::uint64_t out_pixels() const { return checked_product(batch, checked_product(out_height, out_width)); }
  std::uint64_t input_elements() const { return checked_product(in_pixels(), in_channels); }
  std::uint64_t output_elements() const { return checked_product(out_pixels(), out_channels); }
  std::uint64_t weight_elements() const { return checked_product(out_channels, patch() / groups); }
  /// What one output pixel sees: kernel² · in_channels elements, a row of the column matrix.
  std::uint64_t patch() const { return checked_product(checked_product(kernel, kernel), in_channels); }
  /// Whether the image itself is the column matrix.
  bool is_pointwise() const {
    return kernel == 1 && stride == 1 && pad_top == 0 && pad_left == 0 && out_height == height && out_width == width;
  }
};

/// The usual convolution: `padding` on all sides, output (size + 2 · padding − kernel) / stride + 1, rounded down.
/// Throws std::invalid_argument, with one line, when a size is zero, the padded image is smaller than the kernel, or
/// the groups do not divide both numbers of channels; std::length_error, as every product of sizes here, when it does
/// not fit 64 bits.
ConvolutionShape convolution_shape(std::uint64_t batch, std::uint64_t height, std::uint64_t width,
                                   std::uint64_t in_channels, std::uint64_t out_channels, std::uint64_t kernel,
                                   std::uint64_t stride, std::uint64_t padding, std::uint64_t groups = 1);

/// What of the column matrix exists at once in the tiled way: at most a tenth of it and kColumnTileBytes.
///   - As a rule all columns for some output pixels: whole images, or where one is too many, output rows of one image,
///     one at least. Each tile reads the weights again.
///   - In FP32, where the weights are more than the output: some columns for all output pixels. Each tile adds to the
///     output, or to the input's gradient; in 16 bits every such sum would be rounded.
struct ColumnTile {
  std::uint64_t images, rows;  ///< images > 1 only with all of their rows
  std::uint64_t
      columns;  ///< fewer than patch() only with all images and rows; then a multiple of 4, at most in_channels
  std::uint64_t pixels(const ConvolutionShape& shape) const { return images * rows * shape.out_width; }
  std::uint64_t elements(const ConvolutionShape& shape) const { return checked_product(pixels(shape), columns); }
};
inline constexpr std::uint64_t kColumnTileBytes = std::uint64_t(16) << 20;
/// Of elements of `element_bytes` bytes.
ColumnTile column_tile(const ConvolutionShape& shape, std::uint64_t element_bytes);

/// Workspace of a call, bytes as the ledger counts them: one buffer of columns (0: none), and FP32 sums of the weight's
/// gradient where tiles of 16-bit elements are added up (backward_weight alone).
struct ConvolutionWorkspace {
  std::uint64_t columns, sums;
};
/// Of a convolution done this way on elements of `element_bytes` bytes.
ConvolutionWorkspace convolution_workspace(const ConvolutionShape& shape, ConvolutionWay way,
                                           std::uint64_t element_bytes);
/// Floating-point operations of the forward pass, and of each of the two gradients: 2 · P · K² · C / groups · out.
double convolution_flops(const ConvolutionShape& shape);

}  // namespace oomlab::nn
