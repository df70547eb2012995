#include "plan/model/convolution.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace oomlab::nn {

const char* name_of(ConvolutionWay way) noexcept {
  switch (way) {
    case ConvolutionWay::im2col: return "im2col";
    case ConvolutionWay::tiled: return "tiled";
    case ConvolutionWay::direct: return "direct";
  }
  return "?";
}

ConvolutionShape convolution_shape(std::uint64_t batch, std::uint64_t height, std::uint64_t width,
                                   std::uint64_t in_channels, std::uint64_t out_channels, std::uint64_t kernel,
                                   std::uint64_t stride, std::uint64_t padding, std::uint64_t groups) {
  for (const auto& [value, what] : {std::pair(batch, "an empty batch"),
                                    {height, "a height of zero"},
                                    {width, "a width of zero"},
                                    {in_channels, "no input channels"},
                                    {out_channels, "no output channels"},
                                    {kernel, "a kernel of zero"},
                                    {stride, "a stride of zero"},
                                    {groups, "no groups"}})
    if (value == 0) throw std::invalid_argument(std::string("a convolution cannot have ") + what);
  const std::uint64_t padded_height = checked_sum(height, checked_product(padding, 2)),
                      padded_width = checked_sum(width, checked_product(padding, 2));
  if (padded_height < kernel || padded_width < kernel)
    throw std::invalid_argument("an image of " + std::to_string(height) + " x " + std::to_string(width) +
                                (padding ? " with a padding of " + std::to_string(padding) : "") +
                                " is smaller than the kernel of " + std::to_string(kernel) + " x " +
                                std::to_string(kernel));
  if (in_channels % groups != 0 || out_channels % groups != 0)
    throw std::invalid_argument(std::to_string(groups) + " groups do not divide " + std::to_string(in_channels) +
                                " input and " + std::to_string(out_channels) + " output channels");
  return {.batch = batch,
          .height = height,
          .width = width,
          .in_channels = in_channels,
          .out_channels = out_channels,
          .kernel = kernel,
          .stride = stride,
          .pad_top = padding,
          .pad_left = padding,
          .groups = groups,
          .out_height = (padded_height - kernel) / stride + 1,
          .out_width = (padded_width - kernel) / stride + 1};
}

ColumnTile column_tile(const ConvolutionShape& shape, std::uint64_t element_bytes) {
  if (element_bytes == sizeof(float) && shape.groups == 1 && shape.weight_elements() > shape.output_elements()) {
    const std::uint64_t column_bytes = checked_product(shape.out_pixels(), element_bytes);
    const std::uint64_t columns =
        std::min({shape.patch() / 10, shape.in_channels, kColumnTileBytes / column_bytes}) / 4 * 4;
    if (columns > 0) return {shape.batch, shape.out_height, columns};
  }
  const std::uint64_t row_bytes = checked_product(checked_product(shape.out_width, shape.patch()), element_bytes);
  const std::uint64_t all = checked_product(shape.batch, shape.out_height);
  const std::uint64_t rows = std::max<std::uint64_t>(1, std::min(all / 10, kColumnTileBytes / row_bytes));
  if (rows < shape.out_height) return {1, rows, shape.patch()};
  return {std::min(shape.batch, rows / shape.out_height), shape.out_height, shape.patch()};
}

ConvolutionWorkspace convolution_workspace(const ConvolutionShape& shape, ConvolutionWay way,
                                           std::uint64_t element_bytes) {
  if (way == ConvolutionWay::direct || shape.is_pointwise()) return {};
  const std::uint64_t all = checked_product(shape.out_pixels(), shape.patch());
  const std::uint64_t elements = way == ConvolutionWay::tiled ? column_tile(shape, element_bytes).elements(shape) : all;
  return {round_to_granule(checked_product(elements, element_bytes)),
          elements < all && element_bytes < sizeof(float)
              ? round_to_granule(checked_product(shape.weight_elements(), sizeof(float)))
              : 0};
}

double convolution_flops(const ConvolutionShape& shape) {
  return 2.0 * static_cast<double>(shape.out_pixels()) * static_cast<double>(shape.patch() / shape.groups) *
         static_cast<double>(shape.out_channels);
}

}  // namespace oomlab::nn
