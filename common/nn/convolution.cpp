// Sizes of convolutions, and what their workspace takes.

#include "nn/convolution.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "nn/named.h"

namespace oomlab::nn {

const char* name_of(ConvolutionWay way) noexcept {
  switch (way) {
    case ConvolutionWay::im2col: return "im2col";
    case ConvolutionWay::tiled: return "tiled";
    case ConvolutionWay::direct: return "direct";
  }
  return "?";
}

ConvolutionWay parse_convolution(std::string_view name) {
  const ConvolutionWay all[] = {ConvolutionWay::im2col, ConvolutionWay::tiled, ConvolutionWay::direct};
  return parse_named("convolution", name, all);
}

ConvolutionShape convolution_shape(std::size_t batch, std::size_t height, std::size_t width, std::size_t in_channels,
                                   std::size_t out_channels, std::size_t kernel, std::size_t stride,
                                   std::size_t padding, std::size_t groups) {
  for (const auto& [value, what] : {std::pair(batch, "an empty batch"),
                                    {height, "a height of zero"},
                                    {width, "a width of zero"},
                                    {in_channels, "no input channels"},
                                    {out_channels, "no output channels"},
                                    {kernel, "a kernel of zero"},
                                    {stride, "a stride of zero"},
                                    {groups, "no groups"}})
    if (value == 0) throw std::invalid_argument(std::string("a convolution cannot have ") + what);
  const std::size_t padded_height = checked_sum(height, checked_product(padding, 2)),
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

ColumnTile column_tile(const ConvolutionShape& shape, std::size_t element_bytes) {
  const std::size_t row_bytes = checked_product(checked_product(shape.out_width, shape.patch()), element_bytes);
  const std::size_t all = checked_product(shape.batch, shape.out_height);
  const std::size_t rows = std::max<std::size_t>(1, std::min(all / 10, kColumnTileBytes / row_bytes));
  if (rows < shape.out_height) return {1, rows};
  return {std::min(shape.batch, rows / shape.out_height), shape.out_height};
}

ConvolutionWorkspace convolution_workspace(const ConvolutionShape& shape, ConvolutionWay way,
                                           std::size_t element_bytes) {
  if (way == ConvolutionWay::direct || shape.is_pointwise()) return {};
  const bool tiled = way == ConvolutionWay::tiled;
  const std::size_t pixels = tiled ? column_tile(shape, element_bytes).pixels(shape) : shape.out_pixels();
  const bool several = pixels < shape.out_pixels();
  return {round_to_granule(checked_product(checked_product(pixels, shape.patch()), element_bytes)),
          several && element_bytes < sizeof(float)
              ? round_to_granule(checked_product(shape.weight_elements(), sizeof(float)))
              : 0};
}

double convolution_flops(const ConvolutionShape& shape) {
  return 2.0 * static_cast<double>(shape.out_pixels()) * static_cast<double>(shape.patch() / shape.groups) *
         static_cast<double>(shape.out_channels);
}

}  // namespace oomlab::nn
