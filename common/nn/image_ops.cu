#include "nn/image_ops.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <stdexcept>

#include "nn/column_sum.h"
#include "nn/kernel.h"
#include "nn/ops.h"

namespace oomlab::nn {

// ---------------------------------------------------------------------------------------------------------- batch norm

namespace {

// What a channel's statistics add up, scaled so that the sum is a mean.
enum class Statistic { mean, variance };
template <class T, Statistic kStatistic, bool kPacks>
struct StatisticColumns {
  const T* x;
  const float* mean;  // for the variance: subtracting it first keeps a small variance beside a large mean
  std::size_t width;
  float scale;

  __device__ float of(float value, std::size_t column) const {
    if constexpr (kStatistic == Statistic::mean) return value * scale;
    const float distance = value - mean[column];
    return distance * distance * scale;
  }
  __device__ float at(std::size_t row, std::size_t column) const {
    return of(static_cast<float>(x[row * width + column]), column);
  }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    float values[kCell];
    load_floats<kPacks, kCell>(values, x + row * width + column);
    for (std::size_t k = 0; k < kCell; ++k) sum[k] += of(values[k], column + k);
  }
};

// Variances become 1/σ, and running statistics move.
__global__ void inv_std_kernel(const float* __restrict__ mean, float* __restrict__ inv_std, BatchNormState running,
                               std::size_t channels, float unbiased, BatchNormSettings settings) {
  for (std::size_t c : grid_range(channels)) {
    const float variance = inv_std[c];
    inv_std[c] = 1.0f / sqrtf(variance + settings.eps);
    if (!running.running_mean) continue;
    const float kept = 1.0f - settings.momentum;
    running.running_mean[c] = kept * running.running_mean[c] + settings.momentum * mean[c];
    running.running_variance[c] = kept * running.running_variance[c] + settings.momentum * (variance * unbiased);
  }
}

// kVariance: the scale is of a variance, as running statistics have it; otherwise of 1/σ.
template <class T, bool kVariance>
__global__ void normalize_kernel(const T* x, const float* __restrict__ gamma, const float* __restrict__ beta,
                                 const T* residual, T* y, const float* __restrict__ mean,
                                 const float* __restrict__ scale, std::size_t rows, std::size_t channels, bool relu,
                                 float eps, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      V r{};
      v = load<V>(x + at, i);
      if (residual) r = load<V>(residual + at, i);
      each_lane<V>([&](std::size_t k) {
        const std::size_t c = i * V::size + k;
        const float inv_std = kVariance ? 1.0f / sqrtf(scale[c] + eps) : scale[c];
        float z = (static_cast<float>(v[k]) - mean[c]) * inv_std * gamma[c] + beta[c];
        if (residual) z += static_cast<float>(r[k]);
        v[k] = static_cast<T>(relu && !(z > 0.0f) ? (z == z ? 0.0f : z) : z);
      });
      store(y + at, i, v);
    });
  }
}

// dy, or dy · x̂.
template <class T, bool kGamma, bool kPacks>
struct BatchNormColumns {
  const T *dy, *x;
  const float *mean, *inv_std;
  std::size_t width;

  __device__ float of(float d, float value, std::size_t column) const {
    return kGamma ? d * ((value - mean[column]) * inv_std[column]) : d;
  }
  __device__ float at(std::size_t row, std::size_t column) const {
    const std::size_t i = row * width + column;
    return of(static_cast<float>(dy[i]), kGamma ? static_cast<float>(x[i]) : 0.0f, column);
  }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    float d[kCell], values[kCell] = {};
    load_floats<kPacks, kCell>(d, dy + row * width + column);
    if constexpr (kGamma) load_floats<kPacks, kCell>(values, x + row * width + column);
    for (std::size_t k = 0; k < kCell; ++k) sum[k] += of(d[k], values[k], column + k);
  }
};

// dx = gamma / σ · (dy − mean of dy − x̂ · mean of dy · x̂), where x was.
template <class T>
__global__ void batch_norm_backward_kernel(T* x, const T* __restrict__ dy, const float* __restrict__ gamma,
                                           const float* __restrict__ mean, const float* __restrict__ inv_std,
                                           const float* __restrict__ dgamma, const float* __restrict__ dbeta,
                                           std::size_t rows, std::size_t channels, float one_row, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(x + at, i);
      const V d = load<V>(dy + at, i);
      each_lane<V>([&](std::size_t k) {
        const std::size_t c = i * V::size + k;
        const float normal = (static_cast<float>(v[k]) - mean[c]) * inv_std[c];
        const float centered = static_cast<float>(d[k]) - one_row * (dbeta[c] + normal * dgamma[c]);
        v[k] = static_cast<T>(gamma[c] * inv_std[c] * centered);
      });
      store(x + at, i, v);
    });
  }
}

// work(true_type) where packs may be read.
template <class T, class Work, class... Pointers>
void with_packs(std::size_t width, Work work, Pointers... pointers) {
  if (packs_fit<T>(width, pointers...))
    work(std::true_type{});
  else
    work(std::false_type{});
}

}  // namespace

template <class T>
void batch_norm_forward(Context& context, const T* x, const float* gamma, const float* beta, const T* residual, T* y,
                        float* mean, float* inv_std, BatchNormState running, std::size_t rows, std::size_t channels,
                        bool relu, const BatchNormSettings& settings) {
  if (rows < 2) throw std::invalid_argument("batch norm needs more than one value per channel when training");
  const auto n = static_cast<float>(rows);
  with_packs<T>(
      channels,
      [&]<bool kPacks>(std::bool_constant<kPacks>) {
        launch_column_sum(context, StatisticColumns<T, Statistic::mean, kPacks>{x, nullptr, channels, 1.0f / n}, mean,
                          rows, channels, false);
        launch_column_sum(context, StatisticColumns<T, Statistic::variance, kPacks>{x, mean, channels, 1.0f / n},
                          inv_std, rows, channels, false);
      },
      x);
  launch(inv_std_kernel, shape_for_items(channels), context.stream(), mean, inv_std, running, channels, n / (n - 1.0f),
         settings);
  launch(normalize_kernel<T, false>, shape_for_packed_rows<T>(rows, channels), context.stream(), x, gamma, beta,
         residual, y, mean, inv_std, rows, channels, relu, settings.eps, packs_fit<T>(channels, x, residual, y));
}

template <class T>
void batch_norm_again(Context& context, const T* x, const float* gamma, const float* beta, T* y, const float* mean,
                      const float* inv_std, std::size_t rows, std::size_t channels, bool relu) {
  launch(normalize_kernel<T, false>, shape_for_packed_rows<T>(rows, channels), context.stream(), x, gamma, beta,
         static_cast<const T*>(nullptr), y, mean, inv_std, rows, channels, relu, 0.0f, packs_fit<T>(channels, x, y));
}

template <class T>
void batch_norm_inference(Context& context, const T* x, const float* gamma, const float* beta, const T* residual, T* y,
                          BatchNormState running, std::size_t rows, std::size_t channels, bool relu,
                          const BatchNormSettings& settings) {
  launch(normalize_kernel<T, true>, shape_for_packed_rows<T>(rows, channels), context.stream(), x, gamma, beta,
         residual, y, running.running_mean, running.running_variance, rows, channels, relu, settings.eps,
         packs_fit<T>(channels, x, residual, y));
}

template <class T>
void batch_norm_backward(Context& context, T* x, const T* dy, const float* gamma, const float* mean,
                         const float* inv_std, float* dgamma, float* dbeta, std::size_t rows, std::size_t channels) {
  with_packs<T>(
      channels,
      [&]<bool kPacks>(std::bool_constant<kPacks>) {
        launch_column_sum(context, BatchNormColumns<T, true, kPacks>{dy, x, mean, inv_std, channels}, dgamma, rows,
                          channels, false);
        launch_column_sum(context, BatchNormColumns<T, false, kPacks>{dy, x, mean, inv_std, channels}, dbeta, rows,
                          channels, false);
      },
      x, dy);
  launch(batch_norm_backward_kernel<T>, shape_for_packed_rows<T>(rows, channels), context.stream(), x, dy, gamma, mean,
         inv_std, dgamma, dbeta, rows, channels, 1.0f / static_cast<float>(rows), packs_fit<T>(channels, x, dy));
}

// -------------------------------------------------------------------------------------------------- one value at a
// time

namespace {

template <class T>
__global__ void relu_kernel(const T* x, T* y, std::size_t count, bool packs) {
  for_packs<T>(GridRange{}, count, packs, [&](auto v, std::size_t i) {
    using V = decltype(v);
    v = load<V>(x, i);
    each_lane<V>([&](std::size_t k) {
      const float z = static_cast<float>(v[k]);
      v[k] = z < 0.0f ? static_cast<T>(0.0f) : v[k];
    });
    store(y, i, v);
  });
}

template <class T>
__global__ void add_kernel(T* y, const T* __restrict__ x, std::size_t count, bool packs) {
  for_packs<T>(GridRange{}, count, packs, [&](auto v, std::size_t i) {
    using V = decltype(v);
    v = load<V>(y, i);
    const V more = load<V>(x, i);
    each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(static_cast<float>(v[k]) + static_cast<float>(more[k])); });
    store(y, i, v);
  });
}

}  // namespace

template <class T>
void relu_forward(Context& context, const T* x, T* y, std::size_t count) {
  launch(relu_kernel<T>, shape_for_items(count / Pack<T>::size), context.stream(), x, y, count,
         aligned_for_packs(x, y));
}

template <class T>
void relu_backward(Context& context, T* dy, const T* y, std::size_t count) {
  activation_backward(context, dy, y, count, Activation::relu);
}

template <class T>
void add_to(Context& context, T* y, const T* x, std::size_t count) {
  launch(add_kernel<T>, shape_for_items(count / Pack<T>::size), context.stream(), y, x, count, aligned_for_packs(y, x));
}

// ------------------------------------------------------------------------------------------------------------- pooling

namespace {

constexpr std::size_t kLargestWindow = 15;  // 15² places fit a byte

void require_window(const ConvolutionShape& s) {
  if (s.in_channels != s.out_channels) throw std::invalid_argument("a pool has as many channels in as out");
  if (s.kernel > kLargestWindow) throw std::invalid_argument("a pooling window has at most 15 x 15 pixels");
  if (std::max(s.pad_top, s.pad_left) > s.kernel / 2)
    throw std::invalid_argument("a pool is padded by more than half its window");
}

// The part of an output pixel's window that lies in the image.
struct Window {
  std::size_t image, top, left, ky0, ky1, kx0, kx1;  // top and left in the padded image
};
__device__ inline Window window_of(const ConvolutionShape& s, std::size_t pixel) {
  const std::size_t line = pixel / s.out_width;
  const std::size_t top = line % s.out_height * s.stride, left = pixel % s.out_width * s.stride;
  const std::size_t bottom = s.height + s.pad_top, right = s.width + s.pad_left;
  const std::size_t below = top < bottom ? bottom - top : 0, beside = left < right ? right - left : 0;
  return {line / s.out_height,
          top,
          left,
          top < s.pad_top ? s.pad_top - top : 0,
          s.kernel < below ? s.kernel : below,
          left < s.pad_left ? s.pad_left - left : 0,
          s.kernel < beside ? s.kernel : beside};
}
template <class T>
__device__ T* in_window(const ConvolutionShape& s, const Window& w, T* x, std::size_t ky, std::size_t kx) {
  return x + ((w.image * s.height + w.top + ky - s.pad_top) * s.width + w.left + kx - s.pad_left) * s.in_channels;
}

// A thread has more values in flight here than the registers of 1,024 threads hold; see at_most().
constexpr unsigned kPoolThreads = 512;

template <class T, bool kMaximum>
__global__ void pool_kernel(ConvolutionShape s, const T* __restrict__ x, T* __restrict__ y, unsigned char* which,
                            bool packs) {
  for (std::size_t pixel : row_range(s.batch * s.out_height * s.out_width)) {
    const Window w = window_of(s, pixel);
    const float share = 1.0f / static_cast<float>((w.ky1 - w.ky0) * (w.kx1 - w.kx0));
    for_packs<T>(BlockRange{}, s.in_channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float best[V::size];
      unsigned char place[V::size];
      each_lane<V>([&](std::size_t k) { best[k] = 0.0f, place[k] = 0; });
      for (std::size_t ky = w.ky0; ky < w.ky1; ++ky)
        for (std::size_t kx = w.kx0; kx < w.kx1; ++kx) {
          v = load<V>(in_window(s, w, x, ky, kx), i);
          const bool first = ky == w.ky0 && kx == w.kx0;
          each_lane<V>([&](std::size_t k) {
            const float value = static_cast<float>(v[k]);
            if (!kMaximum) {
              best[k] += value;
            } else if (first || value > best[k] || value != value) {
              best[k] = value, place[k] = static_cast<unsigned char>(ky * s.kernel + kx);
            }
          });
        }
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(kMaximum ? best[k] : best[k] * share); });
      store(y + pixel * s.in_channels, i, v);
      if (kMaximum && which)
        each_lane<V>([&](std::size_t k) { which[pixel * s.in_channels + i * V::size + k] = place[k]; });
    });
  }
}

// An input pixel gathers from the windows that have it: of the maximum those that chose it, of the mean their shares.
template <class T, bool kMaximum>
__global__ void pool_backward_kernel(ConvolutionShape s, const T* __restrict__ dy,
                                     const unsigned char* __restrict__ which, T* __restrict__ dx, bool packs) {
  for (std::size_t pixel : row_range(s.batch * s.height * s.width)) {
    const std::size_t line = pixel / s.width, image = line / s.height;
    const std::size_t y = line % s.height + s.pad_top, x = pixel % s.width + s.pad_left;
    for_packs<T>(BlockRange{}, s.in_channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float sum[V::size];
      each_lane<V>([&](std::size_t k) { sum[k] = 0.0f; });
      for (std::size_t ky = y % s.stride; ky < s.kernel && ky <= y; ky += s.stride)
        for (std::size_t kx = x % s.stride; kx < s.kernel && kx <= x; kx += s.stride) {
          const std::size_t oh = (y - ky) / s.stride, ow = (x - kx) / s.stride;
          if (oh >= s.out_height || ow >= s.out_width) continue;
          const std::size_t at = (image * s.out_height + oh) * s.out_width + ow;
          const V d = load<V>(dy + at * s.in_channels, i);
          if constexpr (kMaximum) {
            const unsigned char* const chosen = which + at * s.in_channels + i * V::size;
            each_lane<V>(
                [&](std::size_t k) { sum[k] += chosen[k] == ky * s.kernel + kx ? static_cast<float>(d[k]) : 0.0f; });
          } else {
            const Window w = window_of(s, at);
            const float share = 1.0f / static_cast<float>((w.ky1 - w.ky0) * (w.kx1 - w.kx0));
            each_lane<V>([&](std::size_t k) { sum[k] += static_cast<float>(d[k]) * share; });
          }
        }
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(sum[k]); });
      store(dx + pixel * s.in_channels, i, v);
    });
  }
}

constexpr std::size_t kPixelsOfSum = 64;

template <class T>
__global__ void global_pool_kernel(const T* __restrict__ x, T* y, std::size_t batch, std::size_t pixels,
                                   std::size_t channels, float scale, bool accumulate, bool packs) {
  for (std::size_t image : row_range(batch))
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float sum[V::size];
      each_lane<V>([&](std::size_t k) { sum[k] = 0.0f; });
      for (std::size_t first = 0; first < pixels;
           first += kPixelsOfSum) {  // short sums, so that large images lose nothing
        const std::size_t end = first + kPixelsOfSum < pixels ? first + kPixelsOfSum : pixels;
        float part[V::size];
        each_lane<V>([&](std::size_t k) { part[k] = 0.0f; });
        for (std::size_t pixel = first; pixel < end; ++pixel) {
          v = load<V>(x + (image * pixels + pixel) * channels, i);
          each_lane<V>([&](std::size_t k) { part[k] += static_cast<float>(v[k]); });
        }
        each_lane<V>([&](std::size_t k) { sum[k] += part[k]; });
      }
      if (accumulate) v = load<V>(y + image * channels, i);
      each_lane<V>([&](std::size_t k) {
        v[k] = static_cast<T>((accumulate ? static_cast<float>(v[k]) : 0.0f) + scale * sum[k]);
      });
      store(y + image * channels, i, v);
    });
}

template <class T>
__global__ void global_pool_backward_kernel(const T* __restrict__ dy, T* __restrict__ dx, std::size_t batch,
                                            std::size_t pixels, std::size_t channels, float scale, bool packs) {
  for (std::size_t row : row_range(batch * pixels))
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(dy + row / pixels * channels, i);
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(static_cast<float>(v[k]) * scale); });
      store(dx + row * channels, i, v);
    });
}

template <bool kMaximum, class T>
void pool_forward(Context& context, const ConvolutionShape& s, const T* x, T* y, unsigned char* which) {
  require_window(s);
  launch(pool_kernel<T, kMaximum>, at_most(kPoolThreads, shape_for_packed_rows<T>(s.out_pixels(), s.in_channels)),
         context.stream(), s, x, y, which, packs_fit<T>(s.in_channels, x, y));
}
template <bool kMaximum, class T>
void pool_backward(Context& context, const ConvolutionShape& s, const T* dy, const unsigned char* which, T* dx) {
  require_window(s);
  launch(pool_backward_kernel<T, kMaximum>, shape_for_packed_rows<T>(s.in_pixels(), s.in_channels), context.stream(), s,
         dy, which, dx, packs_fit<T>(s.in_channels, dy, dx));
}

}  // namespace

template <class T>
void max_pool_forward(Context& context, const ConvolutionShape& s, const T* x, T* y, unsigned char* which) {
  pool_forward<true>(context, s, x, y, which);
}
template <class T>
void max_pool_backward(Context& context, const ConvolutionShape& s, const T* dy, const unsigned char* which, T* dx) {
  pool_backward<true>(context, s, dy, which, dx);
}
template <class T>
void average_pool_forward(Context& context, const ConvolutionShape& s, const T* x, T* y) {
  pool_forward<false, T>(context, s, x, y, nullptr);
}
template <class T>
void average_pool_backward(Context& context, const ConvolutionShape& s, const T* dy, T* dx) {
  pool_backward<false, T>(context, s, dy, nullptr, dx);
}

template <class T>
void global_pool_forward(Context& context, const T* x, T* y, std::size_t batch, std::size_t pixels,
                         std::size_t channels, float scale, bool accumulate) {
  launch(global_pool_kernel<T>, shape_for_packed_rows<T>(batch, channels), context.stream(), x, y, batch, pixels,
         channels, scale, accumulate, packs_fit<T>(channels, x, y));
}
template <class T>
void global_pool_backward(Context& context, const T* dy, T* dx, std::size_t batch, std::size_t pixels,
                          std::size_t channels, float scale) {
  launch(global_pool_backward_kernel<T>, shape_for_packed_rows<T>(checked_product(batch, pixels), channels),
         context.stream(), dy, dx, batch, pixels, channels, scale, packs_fit<T>(channels, dy, dx));
}

#define OOMLAB_IMAGE_OPS(T)                                                                                           \
  template void batch_norm_forward(Context&, const T*, const float*, const float*, const T*, T*, float*, float*,      \
                                   BatchNormState, std::size_t, std::size_t, bool, const BatchNormSettings&);         \
  template void batch_norm_inference(Context&, const T*, const float*, const float*, const T*, T*, BatchNormState,    \
                                     std::size_t, std::size_t, bool, const BatchNormSettings&);                       \
  template void batch_norm_again(Context&, const T*, const float*, const float*, T*, const float*, const float*,      \
                                 std::size_t, std::size_t, bool);                                                     \
  template void batch_norm_backward(Context&, T*, const T*, const float*, const float*, const float*, float*, float*, \
                                    std::size_t, std::size_t);                                                        \
  template void relu_forward(Context&, const T*, T*, std::size_t);                                                    \
  template void relu_backward(Context&, T*, const T*, std::size_t);                                                   \
  template void add_to(Context&, T*, const T*, std::size_t);                                                          \
  template void max_pool_forward(Context&, const ConvolutionShape&, const T*, T*, unsigned char*);                    \
  template void max_pool_backward(Context&, const ConvolutionShape&, const T*, const unsigned char*, T*);             \
  template void average_pool_forward(Context&, const ConvolutionShape&, const T*, T*);                                \
  template void average_pool_backward(Context&, const ConvolutionShape&, const T*, T*);                               \
  template void global_pool_forward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, float, bool);      \
  template void global_pool_backward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, float);
OOMLAB_IMAGE_OPS(float)
OOMLAB_IMAGE_OPS(__half)
OOMLAB_IMAGE_OPS(__nv_bfloat16)
#undef OOMLAB_IMAGE_OPS

}  // namespace oomlab::nn
