// Convolutions through the column matrix: copied out of the image, multiplied by cuBLAS, and in the backward pass added
// up into the image again. Whole or by tiles of it; kernels that need none are in convolution_direct.cu.

#include "nn/ops/convolution.h"

#include <algorithm>

#include "nn/ops/convolution_direct.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"
#include "nn/ops/matmul.h"
#include "nn/ops/values.h"

namespace oomlab::nn {

namespace {

// Output rows [first, first + rows) of images [image, image + images), all rows where there are several images; and
// columns [first_column, first_column + columns) of them, all where there are not all rows.
struct Tile {
  std::size_t image, images, first, rows, first_column, columns;
  std::size_t pixels(const ConvolutionShape& s) const { return images * rows * s.out_width; }
  std::size_t first_pixel(const ConvolutionShape& s) const { return (image * s.out_height + first) * s.out_width; }
};

template <class Body>
void each_tile(const ConvolutionShape& s, ConvolutionWay way, std::size_t element_bytes, Body body) {
  ColumnTile size{s.batch, s.out_height, s.patch()};
  if (way == ConvolutionWay::tiled && !s.is_pointwise()) size = column_tile(s, element_bytes);
  for (std::size_t image = 0; image < s.batch; image += size.images)
    for (std::size_t first = 0; first < s.out_height; first += size.rows)
      for (std::size_t column = 0; column < s.patch(); column += size.columns) {
        body(Tile{image, std::min(size.images, s.batch - image), first, std::min(size.rows, s.out_height - first),
                  column, std::min(size.columns, s.patch() - column)});
        if (planning()) return;  // the others allocate nothing more
      }
}

// A row of columns is [groups, kernel, kernel, channels of a group]. A row of the kernel over one group's channels is a
// run: with one group it lies in the image as it does in the columns.
template <class T>
__global__ void columns_kernel(ConvolutionShape s, Tile tile, const T* __restrict__ x, T* __restrict__ columns,
                               bool packs) {
  const std::size_t channels = s.in_channels / s.groups, run = s.kernel * channels;
  for (std::size_t pixel : row_range(tile.images * tile.rows * s.out_width)) {
    const std::size_t line = pixel / s.out_width, ow = pixel % s.out_width;
    const std::size_t image = tile.image + line / tile.rows, oh = tile.first + line % tile.rows;
    const std::ptrdiff_t left = static_cast<std::ptrdiff_t>(ow * s.stride) - static_cast<std::ptrdiff_t>(s.pad_left);
    const std::ptrdiff_t top = static_cast<std::ptrdiff_t>(oh * s.stride) - static_cast<std::ptrdiff_t>(s.pad_top);
    T* to = columns + pixel * s.kernel * run * s.groups;
    for (std::size_t group = 0; group < s.groups; ++group)
      for (std::size_t ky = 0; ky < s.kernel; ++ky, to += run) {
        const std::ptrdiff_t y = top + static_cast<std::ptrdiff_t>(ky);
        if (y < 0 || y >= static_cast<std::ptrdiff_t>(s.height)) {
          for (std::size_t i : block_range(run)) to[i] = static_cast<T>(0.0f);
          continue;
        }
        const T* const from = x + (image * s.height + static_cast<std::size_t>(y)) * s.width * s.in_channels;
        if (s.groups == 1 && left >= 0 && left + static_cast<std::ptrdiff_t>(s.kernel) <= std::ptrdiff_t(s.width)) {
          const T* const in = from + static_cast<std::size_t>(left) * channels;
          for_packs<T>(BlockRange{}, run, packs, [&](auto v, std::size_t i) {
            using V = decltype(v);
            store(to, i, load<V>(in, i));
          });
          continue;
        }
        for (std::size_t kx = 0; kx < s.kernel; ++kx) {
          const std::ptrdiff_t at = left + static_cast<std::ptrdiff_t>(kx);
          const bool inside = at >= 0 && at < static_cast<std::ptrdiff_t>(s.width);
          const T* const in = from + (inside ? static_cast<std::size_t>(at) : 0) * s.in_channels + group * channels;
          for (std::size_t c : block_range(channels)) to[kx * channels + c] = inside ? in[c] : static_cast<T>(0.0f);
        }
      }
  }
}

// A tile of some columns: of each tap, a pixel of the window, the channels that the tile has. One group.
template <class T>
__global__ void columns_part_kernel(ConvolutionShape s, Tile tile, const T* __restrict__ x, T* __restrict__ columns,
                                    bool packs) {
  const std::size_t channels = s.in_channels, end = tile.first_column + tile.columns;
  for (std::size_t pixel : row_range(s.batch * s.out_height * s.out_width)) {
    const std::size_t line = pixel / s.out_width, image = line / s.out_height;
    const std::size_t top = line % s.out_height * s.stride, left = pixel % s.out_width * s.stride;
    T* const to = columns + pixel * tile.columns;
    for (std::size_t tap = tile.first_column / channels, at = tile.first_column; at < end; ++tap) {
      const std::size_t y = top + tap / s.kernel - s.pad_top, w = left + tap % s.kernel - s.pad_left;
      const bool inside = y < s.height && w < s.width;  // in the padding they wrap around
      const std::size_t next = (tap + 1) * channels < end ? (tap + 1) * channels : end;
      const T* const in = x + (inside ? (image * s.height + y) * s.width + w : 0) * channels + at - tap * channels;
      for_packs<T>(BlockRange{}, next - at, packs, [&](auto v, std::size_t i) {
        using V = decltype(v);
        store(to + at - tile.first_column, i, inside ? load<V>(in, i) : V{});
      });
      at = next;
    }
  }
}

// Input rows [low, high) of the tile's images: those that its output rows read. A row belongs to the first tile that
// comes to it, which overwrites it; later ones add.
struct InputRows {
  std::size_t low, high;
};
InputRows input_rows(const ConvolutionShape& s, const Tile& tile) {
  const auto end_of = [&](std::size_t out) {  // behind the last input row that output rows before `out` read
    const std::size_t end = out == 0 ? 0 : (out - 1) * s.stride + s.kernel;
    return std::min(s.height, end - std::min(end, s.pad_top));
  };
  const std::size_t begin = tile.first * s.stride;
  const std::size_t low = tile.first == 0 ? 0 : std::min(begin - std::min(begin, s.pad_top), end_of(tile.first));
  const std::size_t end = tile.first + tile.rows;
  return {low, end == s.out_height ? s.height : std::max(low, end_of(end))};
}

// Most convolutions have no stride to divide by.
__device__ inline std::size_t steps(std::size_t distance, std::size_t stride) {
  return stride == 1 ? distance : distance / stride;
}

// An input pixel gathers what the columns' gradient has for it, in one fixed order.
template <class T>
__global__ void image_gradient_kernel(ConvolutionShape s, Tile tile, InputRows rows, const T* __restrict__ columns,
                                      T* __restrict__ dx, std::size_t added_below, bool packs) {
  const std::size_t channels = s.in_channels / s.groups, run = s.kernel * channels, height = rows.high - rows.low;
  for (std::size_t pixel : row_range(tile.images * height * s.width)) {
    const std::size_t line = pixel / s.width, x = pixel % s.width + s.pad_left;
    const std::size_t image = line / height, row = rows.low + line % height, y = row + s.pad_top;
    T* const to =
        dx + ((tile.image + image) * s.height + row) * s.width * s.in_channels + pixel % s.width * s.in_channels;
    const bool adds = row < added_below;
    for_packs<T>(BlockRange{}, s.in_channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float sum[V::size];
      each_lane<V>([&](std::size_t k) { sum[k] = 0.0f; });
      const std::size_t channel = i * V::size, group = channel / channels;
      const T* const of_group = columns + group * s.kernel * run + channel % channels;
      for (std::size_t ky = y % s.stride; ky < s.kernel && ky <= y; ky += s.stride) {
        const std::size_t oh = steps(y - ky, s.stride) - tile.first;  // wraps around above the tile
        if (oh >= tile.rows) continue;
        for (std::size_t kx = x % s.stride; kx < s.kernel && kx <= x; kx += s.stride) {
          const std::size_t ow = steps(x - kx, s.stride);
          if (ow >= s.out_width) continue;
          const std::size_t at = (image * tile.rows + oh) * s.out_width + ow;
          const V part = load<V>(of_group + at * s.kernel * run * s.groups + ky * run + kx * channels, 0);
          each_lane<V>([&](std::size_t k) { sum[k] += static_cast<float>(part[k]); });
        }
      }
      if (adds) v = load<V>(to, i);
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(adds ? static_cast<float>(v[k]) + sum[k] : sum[k]); });
      store(to, i, v);
    });
  }
}

// Of a tile of some columns, at most as many as there are channels: no two of them belong to the same value of dx, so
// each thread adds its own. They are of one tap or two.
template <class T>
__global__ void image_gradient_part_kernel(ConvolutionShape s, Tile tile, const T* __restrict__ columns, T* dx,
                                           bool packs) {
  const std::size_t channels = s.in_channels, tap = tile.first_column / channels;
  for (std::size_t pixel : row_range(s.batch * s.height * s.width)) {
    const std::size_t line = pixel / s.width, image = line / s.height;
    const T* from[2];
    for (std::size_t k = 0; k < 2; ++k) {  // where the output pixel's columns lie that saw this pixel; null: none did
      const std::size_t y = line % s.height + s.pad_top - (tap + k) / s.kernel,
                        x = pixel % s.width + s.pad_left - (tap + k) % s.kernel;  // wrap around above and on the left
      const std::size_t oh = y / s.stride, ow = x / s.stride;
      const bool seen = oh < s.out_height && ow < s.out_width && y % s.stride == 0 && x % s.stride == 0;
      from[k] = seen ? columns + ((image * s.out_height + oh) * s.out_width + ow) * tile.columns : nullptr;
    }
    for_packs<T>(BlockRange{}, tile.columns, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      const std::size_t column = tile.first_column + i * V::size - tap * channels, second = column / channels;
      const T* const in = second ? from[1] : from[0];
      if (!in) return;
      T* const to = dx + pixel * channels + column - second * channels;
      const V part = load<V>(in, i);
      v = load<V>(to, 0);
      each_lane<V>(
          [&](std::size_t k) { v[k] = static_cast<T>(static_cast<float>(v[k]) + static_cast<float>(part[k])); });
      store(to, 0, v);
    });
  }
}

template <class T>
__global__ void rounded_kernel(const float* __restrict__ sums, T* to, std::size_t count, bool adds) {
  for (std::size_t i : grid_range(count)) to[i] = static_cast<T>(adds ? static_cast<float>(to[i]) + sums[i] : sums[i]);
}

// Matrices of the products, one a group.
template <class T>
Strided<T> of_columns(const ConvolutionShape& s, const Tile& tile, T* columns) {
  return {columns, tile.columns, s.patch() / s.groups};
}
template <class T>
Strided<T> of_weight(const ConvolutionShape& s, const Tile& tile, T* weight) {
  const std::size_t patch = s.patch() / s.groups;
  return {weight + tile.first_column, patch, s.out_channels / s.groups * patch};
}
template <class T>
Strided<T> of_output(const ConvolutionShape& s, T* y) {
  return {y, s.out_channels, s.out_channels / s.groups};
}

template <class T>
DeviceBuffer<T> make_columns(Context& context, const ConvolutionShape& s, ConvolutionWay way) {
  if (s.is_pointwise()) return {};
  const std::size_t elements =
      way == ConvolutionWay::tiled ? column_tile(s, sizeof(T)).elements(s) : checked_product(s.out_pixels(), s.patch());
  return context.buffer<T>(elements, Category::workspace, "columns");
}

// The tile's column matrix: copied to `columns`, or where there is none, the image itself.
template <class T>
const T* columns_of(Context& context, const ConvolutionShape& s, const Tile& tile, const T* x,
                    DeviceBuffer<T>& columns) {
  if (!columns) return x + tile.first_pixel(s) * s.in_channels;
  const bool packs = packs_fit<T>(s.in_channels, x, columns.data());
  if (tile.columns < s.patch())
    launch(columns_part_kernel<T>, shape_for_packed_rows<T>(tile.pixels(s), tile.columns), context.stream(), s, tile, x,
           columns.data(), packs);
  else
    launch(columns_kernel<T>, shape_for_packed_rows<T>(tile.pixels(s), s.kernel * (s.in_channels / s.groups)),
           context.stream(), s, tile, x, columns.data(), packs);
  return columns.data();
}

}  // namespace

template <class T>
void convolution_forward(Context& context, const ConvolutionShape& s, ConvolutionWay way, const T* x, const T* weight,
                         T* y) {
  if (way == ConvolutionWay::direct && !s.is_pointwise()) return direct_forward(context, s, x, weight, y);
  auto columns = make_columns<T>(context, s, way);
  each_tile(s, way, sizeof(T), [&](const Tile& tile) {
    const T* const matrix = columns_of(context, s, tile, x, columns);
    gemm_strided<T>(context, false, true, tile.pixels(s), s.out_channels / s.groups, tile.columns / s.groups, 1.0f,
                    of_columns(s, tile, matrix), of_weight(s, tile, weight), tile.first_column ? 1.0f : 0.0f,
                    of_output(s, y + tile.first_pixel(s) * s.out_channels), s.groups);
  });
}

template <class T>
void convolution_backward_input(Context& context, const ConvolutionShape& s, ConvolutionWay way, const T* dy,
                                const T* weight, T* dx) {
  if (way == ConvolutionWay::direct && !s.is_pointwise()) return direct_backward_input(context, s, dy, weight, dx);
  auto columns = make_columns<T>(context, s, way);
  each_tile(s, way, sizeof(T), [&](const Tile& tile) {
    T* const matrix = columns ? columns.data() : dx + tile.first_pixel(s) * s.in_channels;
    gemm_strided<T>(context, false, false, tile.pixels(s), tile.columns / s.groups, s.out_channels / s.groups, 1.0f,
                    of_output(s, dy + tile.first_pixel(s) * s.out_channels), of_weight(s, tile, weight), 0.0f,
                    of_columns(s, tile, matrix), s.groups);
    if (!columns) return;
    if (tile.columns < s.patch()) {
      if (tile.first_column == 0) fill(context, dx, s.input_elements(), 0.0f);
      return launch(image_gradient_part_kernel<T>, shape_for_packed_rows<T>(s.in_pixels(), tile.columns),
                    context.stream(), s, tile, columns.data(), dx, packs_fit<T>(s.in_channels, dx, columns.data()));
    }
    const InputRows rows = input_rows(s, tile);
    const std::size_t added_below =
        tile.first == 0 ? 0 : input_rows(s, {tile.image, 1, 0, tile.first, 0, s.patch()}).high;
    if (rows.high == rows.low) return;
    launch(image_gradient_kernel<T>,
           shape_for_packed_rows<T>(tile.images * (rows.high - rows.low) * s.width, s.in_channels), context.stream(), s,
           tile, rows, columns.data(), dx, added_below, packs_fit<T>(s.in_channels / s.groups, dx, columns.data()));
  });
}

template <class T>
void convolution_backward_weight(Context& context, const ConvolutionShape& s, ConvolutionWay way, const T* dy,
                                 const T* x, T* dweight, bool accumulate) {
  if (way == ConvolutionWay::direct && !s.is_pointwise())
    return direct_backward_weight(context, s, dy, x, dweight, accumulate);
  auto columns = make_columns<T>(context, s, way);
  DeviceBuffer<float> sums;
  if (convolution_workspace(s, way, sizeof(T)).sums)
    sums = context.buffer<float>(s.weight_elements(), Category::workspace, "weight gradient sums");
  each_tile(s, way, sizeof(T), [&](const Tile& tile) {
    const T* const matrix = columns_of(context, s, tile, x, columns);
    const bool first = tile.image == 0 && tile.first == 0;
    const auto product = [&]<class Out>(Out* to, bool adds) {
      gemm_strided<T, Out>(context, true, false, s.out_channels / s.groups, tile.columns / s.groups, tile.pixels(s),
                           1.0f, of_output(s, dy + tile.first_pixel(s) * s.out_channels), of_columns(s, tile, matrix),
                           adds ? 1.0f : 0.0f, of_weight(s, tile, to), s.groups);
    };
    if (sums)
      product(sums.data(), !first);
    else
      product(dweight, accumulate || !first);
  });
  if (sums)
    launch(rounded_kernel<T>, shape_for_items(s.weight_elements()), context.stream(), sums.data(), dweight,
           s.weight_elements(), accumulate);
}

#define OOMLAB_CONVOLUTION(T)                                                                                          \
  template void convolution_forward(Context&, const ConvolutionShape&, ConvolutionWay, const T*, const T*, T*);        \
  template void convolution_backward_input(Context&, const ConvolutionShape&, ConvolutionWay, const T*, const T*, T*); \
  template void convolution_backward_weight(Context&, const ConvolutionShape&, ConvolutionWay, const T*, const T*, T*, \
                                            bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_CONVOLUTION)

}  // namespace oomlab::nn
