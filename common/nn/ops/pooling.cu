// Pooling: windows of pixels, and whole images.

#include "nn/ops/pooling.h"

#include <algorithm>
#include <stdexcept>

#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

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

template <class T>
__global__ void global_pool_kernel(const T* __restrict__ x, T* y, std::size_t batch, std::size_t pixels,
                                   std::size_t channels, float scale, bool accumulate, bool packs) {
  for (std::size_t image : row_range(batch))
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float sum[V::size];
      sum_in_parts(sum, pixels, [&](float* part, std::size_t pixel) {
        v = load<V>(x + (image * pixels + pixel) * channels, i);
        each_lane<V>([&](std::size_t k) { part[k] += static_cast<float>(v[k]); });
      });
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

#define OOMLAB_POOLING(T)                                                                                        \
  template void max_pool_forward(Context&, const ConvolutionShape&, const T*, T*, unsigned char*);               \
  template void max_pool_backward(Context&, const ConvolutionShape&, const T*, const unsigned char*, T*);        \
  template void average_pool_forward(Context&, const ConvolutionShape&, const T*, T*);                           \
  template void average_pool_backward(Context&, const ConvolutionShape&, const T*, T*);                          \
  template void global_pool_forward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, float, bool); \
  template void global_pool_backward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, float);
OOMLAB_FOR_EACH_TYPE(OOMLAB_POOLING)

}  // namespace oomlab::nn
