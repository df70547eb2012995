// Kernels that read the image where it lies. Weights and images are read again for every output, so caches decide how
// fast they are; the column matrix, which turns the same work into one product, is what they save.

#include "nn/ops/convolution_direct.h"

#include <stdexcept>

#include "nn/ops/column_sum_kernel.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// body(count, c) for the channels c … c + count − 1: as many as a thread takes at a time, or one by one. A group's
// channels are not mixed with another's when `lanes` says that groups are whole.
template <class T, class Body>
__device__ void for_channels(std::size_t channels, bool lanes, Body body) {
  constexpr std::size_t count = kLanes<T>;
  const std::size_t done = lanes ? channels / count * count : 0;
  for (std::size_t i : block_range(done / count)) body(std::integral_constant<std::size_t, count>{}, i * count);
  for (std::size_t i : block_range(channels - done)) body(std::integral_constant<std::size_t, 1>{}, done + i);
}
template <class T>
bool whole_lanes(std::size_t channels) {
  return channels % kLanes<T> == 0;
}
// A thread has more values in flight here than the registers of 1,024 threads hold; see at_most().
constexpr unsigned kDirectThreads = 512;

template <class T>
LaunchShape shape_for_channels(std::size_t rows, std::size_t channels) {
  return at_most(kDirectThreads, shape_for_short_rows(rows, channels / kLanes<T>));
}

// The sum of a[i] · b[i], in lanes that the caller adds up.
template <class T, std::size_t lanes>
__device__ void add_dot(float (&sum)[lanes], const T* a, const T* b, std::size_t n, bool packs) {
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    float x[lanes], y[lanes];
    if (packs)
      load_floats<true, lanes>(x, a + i), load_floats<true, lanes>(y, b + i);
    else
      load_floats<false, lanes>(x, a + i), load_floats<false, lanes>(y, b + i);
    for (std::size_t k = 0; k < lanes; ++k) sum[k] += x[k] * y[k];
  }
  for (; i < n; ++i) sum[0] += static_cast<float>(a[i]) * static_cast<float>(b[i]);
}

template <class T>
__global__ void direct_forward_kernel(ConvolutionShape s, const T* __restrict__ x, const T* __restrict__ weight,
                                      T* __restrict__ y, bool packs) {
  const std::size_t channels = s.in_channels / s.groups, run = s.kernel * channels, outs = s.out_channels / s.groups;
  for (std::size_t pixel : row_range(s.batch * s.out_height * s.out_width)) {
    const std::size_t line = pixel / s.out_width, image = line / s.out_height;
    // Where the window begins, in the padded image, and which part of it lies in the image.
    const std::size_t top = line % s.out_height * s.stride, left = pixel % s.out_width * s.stride;
    const std::size_t ky0 = top < s.pad_top ? s.pad_top - top : 0, kx0 = left < s.pad_left ? s.pad_left - left : 0;
    const std::size_t bottom = s.height + s.pad_top, right = s.width + s.pad_left;
    const std::size_t below = top < bottom ? bottom - top : 0, beside = left < right ? right - left : 0;
    const std::size_t ky1 = s.kernel < below ? s.kernel : below, kx1 = s.kernel < beside ? s.kernel : beside;
    for (std::size_t out : block_range(s.out_channels)) {
      float sum[kLanes<T>] = {};
      for (std::size_t ky = ky0; ky < ky1; ++ky) {
        const T* const in = x + (image * s.height + top + ky - s.pad_top) * s.width * s.in_channels;
        const T* const w = weight + (out * s.kernel + ky) * run;
        if (s.groups == 1) {
          if (kx0 < kx1)
            add_dot(sum, in + (left + kx0 - s.pad_left) * channels, w + kx0 * channels, (kx1 - kx0) * channels, packs);
          continue;
        }
        for (std::size_t kx = kx0; kx < kx1; ++kx)
          add_dot(sum, in + (left + kx - s.pad_left) * s.in_channels + out / outs * channels, w + kx * channels,
                  channels, packs);
      }
      float all = 0.0f;
      for (const float part : sum) all += part;
      y[pixel * s.out_channels + out] = static_cast<T>(all);
    }
  }
}

// What an input pixel has sent to each output, weighted.
template <class T>
__global__ void direct_backward_input_kernel(ConvolutionShape s, const T* __restrict__ dy, const T* __restrict__ weight,
                                             T* __restrict__ dx, bool lanes) {
  const std::size_t channels = s.in_channels / s.groups, run = s.kernel * channels, outs = s.out_channels / s.groups;
  for (std::size_t pixel : row_range(s.batch * s.height * s.width)) {
    const std::size_t line = pixel / s.width, image = line / s.height;
    const std::size_t y = line % s.height + s.pad_top, x = pixel % s.width + s.pad_left;
    for_channels<T>(s.in_channels, lanes, [&](auto count, std::size_t c) {
      constexpr std::size_t n = decltype(count)::value;
      const std::size_t group = c / channels;
      float sum[n];
      for (std::size_t k = 0; k < n; ++k) sum[k] = 0.0f;
      for (std::size_t ky = y % s.stride; ky < s.kernel && ky <= y; ky += s.stride) {
        const std::size_t oh = (y - ky) / s.stride;
        if (oh >= s.out_height) continue;
        for (std::size_t kx = x % s.stride; kx < s.kernel && kx <= x; kx += s.stride) {
          const std::size_t ow = (x - kx) / s.stride;
          if (ow >= s.out_width) continue;
          const T* const d = dy + ((image * s.out_height + oh) * s.out_width + ow) * s.out_channels + group * outs;
          const T* w = weight + (group * outs * s.kernel + ky) * run + kx * channels + c % channels;
          for (std::size_t out = 0; out < outs; ++out, w += s.kernel * run) {
            const float gradient = static_cast<float>(d[out]);
            float part[n];
            load_floats<(n > 1), n>(part, w);
            for (std::size_t k = 0; k < n; ++k) sum[k] += gradient * part[k];
          }
        }
      }
      store_floats<(n > 1), n>(dx + pixel * s.in_channels + c, sum);
    });
  }
}

// Outputs whose window has its k-th row (column) in the image.
struct Reached {
  std::size_t first, end;
};
__device__ inline Reached reached(std::size_t k, std::size_t pad, std::size_t stride, std::size_t size,
                                  std::size_t outs) {
  const std::size_t first = k < pad ? (pad - k + stride - 1) / stride : 0;
  const std::size_t end = size + pad > k ? (size + pad - k - 1) / stride + 1 : 0;
  return {first, end < outs ? end : outs};
}

// One weight of all that a filter has is a sum over all output pixels: row by row, so that the sums stay short.
template <class T>
__global__ void direct_backward_weight_kernel(ConvolutionShape s, const T* __restrict__ dy, const T* __restrict__ x,
                                              T* dweight, bool lanes, bool accumulate) {
  const std::size_t channels = s.in_channels / s.groups, outs = s.out_channels / s.groups;
  for (std::size_t row : row_range(s.out_channels * s.kernel * s.kernel)) {
    const std::size_t out = row / (s.kernel * s.kernel), ky = row / s.kernel % s.kernel, kx = row % s.kernel;
    const Reached oh = reached(ky, s.pad_top, s.stride, s.height, s.out_height),
                  ow = reached(kx, s.pad_left, s.stride, s.width, s.out_width);
    for_channels<T>(channels, lanes, [&](auto count, std::size_t c) {
      constexpr std::size_t n = decltype(count)::value;
      float sum[n];
      for (std::size_t k = 0; k < n; ++k) sum[k] = 0.0f;
      for (std::size_t image = 0; image < s.batch; ++image)
        for (std::size_t h = oh.first; h < oh.end; ++h) {
          const T* d = dy + ((image * s.out_height + h) * s.out_width + ow.first) * s.out_channels + out;
          const T* in =
              x +
              ((image * s.height + h * s.stride + ky - s.pad_top) * s.width + ow.first * s.stride + kx - s.pad_left) *
                  s.in_channels +
              out / outs * channels + c;
          float of_row[n];
          for (std::size_t k = 0; k < n; ++k) of_row[k] = 0.0f;
          for (std::size_t w = ow.first; w < ow.end; ++w, d += s.out_channels, in += s.stride * s.in_channels) {
            const float gradient = static_cast<float>(*d);
            float part[n];
            load_floats<(n > 1), n>(part, in);
            for (std::size_t k = 0; k < n; ++k) of_row[k] += gradient * part[k];
          }
          for (std::size_t k = 0; k < n; ++k) sum[k] += of_row[k];
        }
      T* const to = dweight + row * channels + c;
      if (accumulate) {
        float before[n];
        load_floats<(n > 1), n>(before, to);
        for (std::size_t k = 0; k < n; ++k) sum[k] += before[k];
      }
      store_floats<(n > 1), n>(to, sum);
    });
  }
}

void require_depthwise(const ConvolutionShape& s) {
  if (s.groups != s.in_channels || s.groups != s.out_channels)
    throw std::invalid_argument("a depthwise convolution has as many groups as channels in and out");
}

void count(Context& context, const ConvolutionShape& s) {
  context.count_flops(static_cast<std::uint64_t>(convolution_flops(s)));
}

}  // namespace

template <class T>
void direct_forward(Context& context, const ConvolutionShape& s, const T* x, const T* weight, T* y) {
  count(context, s);
  launch(direct_forward_kernel<T>, at_most(kDirectThreads, shape_for_short_rows(s.out_pixels(), s.out_channels)),
         context.stream(), s, x, weight, y, whole_lanes<T>(s.in_channels / s.groups) && aligned_for_packs(x, weight));
}

template <class T>
void direct_backward_input(Context& context, const ConvolutionShape& s, const T* dy, const T* weight, T* dx) {
  count(context, s);
  launch(direct_backward_input_kernel<T>, shape_for_channels<T>(s.in_pixels(), s.in_channels), context.stream(), s, dy,
         weight, dx, whole_lanes<T>(s.in_channels / s.groups) && aligned_for_packs(weight, dx));
}

template <class T>
void direct_backward_weight(Context& context, const ConvolutionShape& s, const T* dy, const T* x, T* dweight,
                            bool accumulate) {
  count(context, s);
  const std::size_t filters = checked_product(s.out_channels, checked_product(s.kernel, s.kernel));
  launch(direct_backward_weight_kernel<T>, shape_for_channels<T>(filters, s.in_channels / s.groups), context.stream(),
         s, dy, x, dweight, whole_lanes<T>(s.in_channels / s.groups) && aligned_for_packs(x, dweight), accumulate);
}

// ----------------------------------------------------------------------------------------------------------- depthwise

namespace {

template <class T>
__global__ void depthwise_forward_kernel(ConvolutionShape s, const T* __restrict__ x, const T* __restrict__ weight,
                                         T* __restrict__ y, bool lanes) {
  for (std::size_t pixel : row_range(s.batch * s.out_height * s.out_width)) {
    const std::size_t line = pixel / s.out_width, image = line / s.out_height;
    const std::size_t top = line % s.out_height * s.stride, left = pixel % s.out_width * s.stride;
    for_channels<T>(s.in_channels, lanes, [&](auto count, std::size_t c) {
      constexpr std::size_t n = decltype(count)::value;
      float sum[n];
      for (std::size_t k = 0; k < n; ++k) sum[k] = 0.0f;
      for (std::size_t ky = 0; ky < s.kernel; ++ky)
        for (std::size_t kx = 0; kx < s.kernel; ++kx) {
          const std::size_t h = top + ky - s.pad_top, w = left + kx - s.pad_left;  // wrap around in the padding
          if (h >= s.height || w >= s.width) continue;
          float a[n], b[n];
          load_floats<(n > 1), n>(a, x + ((image * s.height + h) * s.width + w) * s.in_channels + c);
          load_floats<(n > 1), n>(b, weight + (ky * s.kernel + kx) * s.in_channels + c);
          for (std::size_t k = 0; k < n; ++k) sum[k] += a[k] * b[k];
        }
      store_floats<(n > 1), n>(y + pixel * s.in_channels + c, sum);
    });
  }
}

template <class T>
__global__ void depthwise_backward_input_kernel(ConvolutionShape s, const T* __restrict__ dy,
                                                const T* __restrict__ weight, T* __restrict__ dx, bool lanes) {
  for (std::size_t pixel : row_range(s.batch * s.height * s.width)) {
    const std::size_t line = pixel / s.width, image = line / s.height;
    const std::size_t y = line % s.height + s.pad_top, x = pixel % s.width + s.pad_left;
    for_channels<T>(s.in_channels, lanes, [&](auto count, std::size_t c) {
      constexpr std::size_t n = decltype(count)::value;
      float sum[n];
      for (std::size_t k = 0; k < n; ++k) sum[k] = 0.0f;
      for (std::size_t ky = y % s.stride; ky < s.kernel && ky <= y; ky += s.stride)
        for (std::size_t kx = x % s.stride; kx < s.kernel && kx <= x; kx += s.stride) {
          const std::size_t oh = (y - ky) / s.stride, ow = (x - kx) / s.stride;
          if (oh >= s.out_height || ow >= s.out_width) continue;
          float a[n], b[n];
          load_floats<(n > 1), n>(a, dy + ((image * s.out_height + oh) * s.out_width + ow) * s.in_channels + c);
          load_floats<(n > 1), n>(b, weight + (ky * s.kernel + kx) * s.in_channels + c);
          for (std::size_t k = 0; k < n; ++k) sum[k] += a[k] * b[k];
        }
      store_floats<(n > 1), n>(dx + pixel * s.in_channels + c, sum);
    });
  }
}

// The gradient of a weight is a column sum over output pixels: of what each saw at this place of the window, times its
// gradient.
template <class T, bool kPacks>
struct DepthwiseTerm {
  ConvolutionShape s;
  const T *dy, *x;

  // What output pixel `row` saw; null in the padding.
  __device__ const T* seen(std::size_t row, std::size_t column) const {
    const std::size_t place = column / s.in_channels, line = row / s.out_width;
    const std::size_t h = line % s.out_height * s.stride + place / s.kernel - s.pad_top;  // wrap around in the padding
    const std::size_t w = row % s.out_width * s.stride + place % s.kernel - s.pad_left;
    if (h >= s.height || w >= s.width) return nullptr;
    return x + ((line / s.out_height * s.height + h) * s.width + w) * s.in_channels + column % s.in_channels;
  }
  __device__ float at(std::size_t row, std::size_t column) const {
    const T* const in = seen(row, column);
    return in ? static_cast<float>(*in) * static_cast<float>(dy[row * s.in_channels + column % s.in_channels]) : 0.0f;
  }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    if constexpr (kPacks) {
      const T* const in = seen(row, column);
      if (!in) return;
      float a[kCell], b[kCell];
      load_floats<true, kCell>(a, in);
      load_floats<true, kCell>(b, dy + row * s.in_channels + column % s.in_channels);
      for (std::size_t k = 0; k < kCell; ++k) sum[k] += a[k] * b[k];
    } else {
      for (std::size_t k = 0; k < kCell; ++k) sum[k] += at(row, column + k);
    }
  }
};

}  // namespace

template <class T>
void depthwise_forward(Context& context, const ConvolutionShape& s, const T* x, const T* weight, T* y) {
  require_depthwise(s);
  count(context, s);
  launch(depthwise_forward_kernel<T>, shape_for_channels<T>(s.out_pixels(), s.in_channels), context.stream(), s, x,
         weight, y, whole_lanes<T>(s.in_channels) && aligned_for_packs(x, weight, y));
}

template <class T>
void depthwise_backward_input(Context& context, const ConvolutionShape& s, const T* dy, const T* weight, T* dx) {
  require_depthwise(s);
  count(context, s);
  launch(depthwise_backward_input_kernel<T>, shape_for_channels<T>(s.in_pixels(), s.in_channels), context.stream(), s,
         dy, weight, dx, whole_lanes<T>(s.in_channels) && aligned_for_packs(dy, weight, dx));
}

template <class T>
void depthwise_backward_weight(Context& context, const ConvolutionShape& s, const T* dy, const T* x, T* dweight,
                               bool accumulate) {
  require_depthwise(s);
  count(context, s);
  if (s.in_channels % kCell == 0 && aligned_for_packs(dy, x))
    launch_column_sum(context, DepthwiseTerm<T, true>{s, dy, x}, dweight, s.out_pixels(), s.patch(), accumulate);
  else
    launch_column_sum(context, DepthwiseTerm<T, false>{s, dy, x}, dweight, s.out_pixels(), s.patch(), accumulate);
}

#define OOMLAB_DIRECT(T)                                                                                 \
  template void direct_forward(Context&, const ConvolutionShape&, const T*, const T*, T*);               \
  template void direct_backward_input(Context&, const ConvolutionShape&, const T*, const T*, T*);        \
  template void direct_backward_weight(Context&, const ConvolutionShape&, const T*, const T*, T*, bool); \
  template void depthwise_forward(Context&, const ConvolutionShape&, const T*, const T*, T*);            \
  template void depthwise_backward_input(Context&, const ConvolutionShape&, const T*, const T*, T*);     \
  template void depthwise_backward_weight(Context&, const ConvolutionShape&, const T*, const T*, T*, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_DIRECT)

}  // namespace oomlab::nn
