#include "nn/feature_ops.h"

#include <algorithm>
#include <stdexcept>

#include "nn/activation.h"
#include "nn/instances.h"
#include "nn/kernel.h"
#include "plan/bytes.h"

namespace oomlab::nn {

// ------------------------------------------------------------------------------------------- activations behind a norm

namespace {

template <class T, Activation A>
__global__ void norm_activation_backward_kernel(T* __restrict__ dy, const T* __restrict__ z,
                                                const float* __restrict__ gamma, const float* __restrict__ beta,
                                                const float* __restrict__ mean, const float* __restrict__ inv_std,
                                                std::size_t rows, std::size_t channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto d, std::size_t i) {
      using V = decltype(d);
      d = load<V>(dy + at, i);
      const V x = load<V>(z + at, i);
      each_lane<V>([&](std::size_t k) {
        const std::size_t c = i * V::size + k;
        const float v = normalized(static_cast<float>(x[k]), mean[c], inv_std[c], gamma[c], beta[c]);
        d[k] = static_cast<T>(static_cast<float>(d[k]) *
                              derivative<A>(A == Activation::hard_sigmoid ? activate<A>(v) : v));
      });
      store(dy + at, i, d);
    });
  }
}

}  // namespace

template <class T>
void norm_activation_backward(Context& context, T* dy, const T* z, const float* gamma, const float* beta,
                              const float* mean, const float* inv_std, std::size_t rows, std::size_t channels,
                              Activation activation) {
  with_activation(activation, [&]<Activation A>(ActivationConstant<A>) {
    if constexpr (A != Activation::none)
      launch(norm_activation_backward_kernel<T, A>, shape_for_packed_rows<T>(rows, channels), context.stream(), dy, z,
             gamma, beta, mean, inv_std, rows, channels, packs_fit<T>(channels, dy, z));
  });
}

// ----------------------------------------------------------------------------------------------- channels side by side

namespace {

template <class T>
__device__ void copy_row(const T* from, T* to, std::size_t n, bool packs) {
  for_packs<T>(BlockRange{}, n, packs, [=](auto v, std::size_t i) { store(to, i, load<decltype(v)>(from, i)); });
}

template <class T>
__global__ void concatenate_kernel(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y,
                                   std::size_t rows, std::size_t a_channels, std::size_t b_channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    T* const both = y + row * (a_channels + b_channels);
    copy_row(a + row * a_channels, both, a_channels, packs);
    copy_row(b + row * b_channels, both + a_channels, b_channels, packs);
  }
}

template <class T>
__global__ void split_kernel(const T* __restrict__ dy, T* __restrict__ da, T* __restrict__ db, std::size_t rows,
                             std::size_t a_channels, std::size_t b_channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const T* const both = dy + row * (a_channels + b_channels);
    copy_row(both, da + row * a_channels, a_channels, packs);
    copy_row(both + a_channels, db + row * b_channels, b_channels, packs);
  }
}

template <class T>
bool both_fit(const T* a, std::size_t a_channels, const T* b, std::size_t b_channels, const T* joined) {
  return packs_fit<T>(a_channels, a, joined) && packs_fit<T>(b_channels, b);
}

}  // namespace

template <class T>
void concatenate_channels(Context& context, const T* a, const T* b, T* y, std::size_t rows, std::size_t a_channels,
                          std::size_t b_channels) {
  checked_product(rows, checked_sum(a_channels, b_channels));
  launch(concatenate_kernel<T>, shape_for_packed_rows<T>(rows, std::max(a_channels, b_channels)), context.stream(), a,
         b, y, rows, a_channels, b_channels, both_fit(a, a_channels, b, b_channels, y));
}

template <class T>
void split_channels(Context& context, const T* dy, T* da, T* db, std::size_t rows, std::size_t a_channels,
                    std::size_t b_channels) {
  checked_product(rows, checked_sum(a_channels, b_channels));
  launch(split_kernel<T>, shape_for_packed_rows<T>(rows, std::max(a_channels, b_channels)), context.stream(), dy, da,
         db, rows, a_channels, b_channels, both_fit<T>(da, a_channels, db, b_channels, dy));
}

// ---------------------------------------------------------------------------------------------------------- upsampling

namespace {

// Where output pixel i of a line lies among its `size` input pixels, which are 2 · factor apart.
__device__ inline std::size_t place_of(std::size_t i, std::size_t factor, std::size_t size) {
  const std::size_t last = 2 * factor * (size - 1), place = 2 * i + 1 > factor ? 2 * i + 1 - factor : 0;
  return place < last ? place : last;
}

// The input pixels that an output pixel lies between, and the second one's weight.
struct Neighbours {
  std::size_t low, high;
  float weight;
};
__device__ inline Neighbours neighbours_of(std::size_t i, std::size_t factor, std::size_t size) {
  const std::size_t apart = 2 * factor, place = place_of(i, factor, size), low = place / apart;
  return {low, low + 1 < size ? low + 1 : low, static_cast<float>(place - low * apart) / static_cast<float>(apart)};
}

// The output pixels that input pixel `at` has a part in, and the part.
struct Outputs {
  std::size_t at, factor, size;
  __device__ std::size_t first() const { return at == 0 ? 0 : at * factor - factor + (factor + 1) / 2; }
  __device__ std::size_t end() const { return at + 1 == size ? size * factor : at * factor + factor + factor / 2; }
  __device__ float weight(std::size_t i) const {
    const std::size_t place = place_of(i, factor, size), here = 2 * factor * at;
    const std::size_t distance = place < here ? here - place : place - here;
    return static_cast<float>(2 * factor - distance) / static_cast<float>(2 * factor);
  }
};

// An enlarged image: the sizes are of the smaller one.
struct Enlarged {
  std::size_t batch, height, width, channels, factor;
  __host__ __device__ std::size_t out_height() const { return height * factor; }
  __host__ __device__ std::size_t out_width() const { return width * factor; }
};
Enlarged enlarged(std::size_t batch, std::size_t height, std::size_t width, std::size_t channels, std::size_t factor) {
  if (factor == 0) throw std::invalid_argument("an image cannot be enlarged by a factor of 0");
  const std::size_t lines = checked_product(batch, checked_product(height, factor));
  checked_product(checked_product(lines, checked_product(width, factor)), channels);
  return {batch, height, width, channels, factor};
}

template <class T>
__global__ void upsample_kernel(Enlarged s, const T* __restrict__ x, T* __restrict__ y, bool packs) {
  for (std::size_t pixel : row_range(s.batch * s.out_height() * s.out_width())) {
    const std::size_t line = pixel / s.out_width();
    const Neighbours v = neighbours_of(line % s.out_height(), s.factor, s.height);
    const Neighbours h = neighbours_of(pixel % s.out_width(), s.factor, s.width);
    const T* const image = x + line / s.out_height() * s.height * s.width * s.channels;
    const T* const upper = image + v.low * s.width * s.channels;
    const T* const lower = image + v.high * s.width * s.channels;
    const float right = h.weight, left = 1.0f - right, below = v.weight, above = 1.0f - below;
    for_packs<T>(BlockRange{}, s.channels, packs, [&](auto out, std::size_t i) {
      using V = decltype(out);
      const V a = load<V>(upper + h.low * s.channels, i), b = load<V>(upper + h.high * s.channels, i);
      const V c = load<V>(lower + h.low * s.channels, i), d = load<V>(lower + h.high * s.channels, i);
      each_lane<V>([&](std::size_t k) {
        out[k] = static_cast<T>(above * (left * static_cast<float>(a[k]) + right * static_cast<float>(b[k])) +
                                below * (left * static_cast<float>(c[k]) + right * static_cast<float>(d[k])));
      });
      store(y + pixel * s.channels, i, out);
    });
  }
}

// A thread has more values in flight here than the registers of 1,024 threads hold; see at_most().
constexpr unsigned kUpsampleBackwardThreads = 512;

template <class T>
__global__ void upsample_backward_kernel(Enlarged s, const T* __restrict__ dy, T* __restrict__ dx, bool packs) {
  for (std::size_t pixel : row_range(s.batch * s.height * s.width)) {
    const std::size_t line = pixel / s.width;
    const Outputs v{line % s.height, s.factor, s.height}, h{pixel % s.width, s.factor, s.width};
    const T* const image = dy + line / s.height * s.out_height() * s.out_width() * s.channels;
    for_packs<T>(BlockRange{}, s.channels, packs, [&](auto d, std::size_t i) {
      using V = decltype(d);
      float sum[V::size];
      each_lane<V>([&](std::size_t k) { sum[k] = 0.0f; });
      for (std::size_t oy = v.first(); oy < v.end(); ++oy) {
        const T* const out = image + oy * s.out_width() * s.channels;
        const float of_line = v.weight(oy);
        for (std::size_t ox = h.first(); ox < h.end(); ++ox) {
          const float weight = of_line * h.weight(ox);
          d = load<V>(out + ox * s.channels, i);
          each_lane<V>([&](std::size_t k) { sum[k] += weight * static_cast<float>(d[k]); });
        }
      }
      each_lane<V>([&](std::size_t k) { d[k] = static_cast<T>(sum[k]); });
      store(dx + pixel * s.channels, i, d);
    });
  }
}

}  // namespace

template <class T>
void upsample_forward(Context& context, const T* x, T* y, std::size_t batch, std::size_t height, std::size_t width,
                      std::size_t channels, std::size_t factor) {
  const Enlarged s = enlarged(batch, height, width, channels, factor);
  launch(upsample_kernel<T>, shape_for_packed_rows<T>(batch * s.out_height() * s.out_width(), channels),
         context.stream(), s, x, y, packs_fit<T>(channels, x, y));
}

template <class T>
void upsample_backward(Context& context, const T* dy, T* dx, std::size_t batch, std::size_t height, std::size_t width,
                       std::size_t channels, std::size_t factor) {
  const Enlarged s = enlarged(batch, height, width, channels, factor);
  launch(upsample_backward_kernel<T>,
         at_most(kUpsampleBackwardThreads, shape_for_packed_rows<T>(batch * height * width, channels)),
         context.stream(), s, dy, dx, packs_fit<T>(channels, dy, dx));
}

// -------------------------------------------------------------------------------------------- a factor for a channel

namespace {

template <class T>
__global__ void scale_channels_kernel(const T* x, const T* __restrict__ factors, T* y, std::size_t rows,
                                      std::size_t pixels, std::size_t channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels, image = row / pixels * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(x + at, i);
      const V f = load<V>(factors + image, i);
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(static_cast<float>(v[k]) * static_cast<float>(f[k])); });
      store(y + at, i, v);
    });
  }
}

template <class T>
__global__ void scale_backward_factors_kernel(const T* __restrict__ dy, const T* __restrict__ x,
                                              T* __restrict__ dfactors, std::size_t batch, std::size_t pixels,
                                              std::size_t channels, bool packs) {
  for (std::size_t image : row_range(batch))
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float sum[V::size];
      sum_in_parts(sum, pixels, [&](float* part, std::size_t pixel) {
        const std::size_t at = (image * pixels + pixel) * channels;
        v = load<V>(x + at, i);
        const V d = load<V>(dy + at, i);
        each_lane<V>([&](std::size_t k) { part[k] += static_cast<float>(d[k]) * static_cast<float>(v[k]); });
      });
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(sum[k]); });
      store(dfactors + image * channels, i, v);
    });
}

template <class T>
__global__ void scale_backward_input_kernel(T* __restrict__ dy, const T* __restrict__ factors,
                                            const T* __restrict__ dmean, float share, std::size_t rows,
                                            std::size_t pixels, std::size_t channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels, image = row / pixels * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(dy + at, i);
      const V f = load<V>(factors + image, i), m = load<V>(dmean + image, i);
      each_lane<V>([&](std::size_t k) {
        v[k] = static_cast<T>(static_cast<float>(v[k]) * static_cast<float>(f[k]) + share * static_cast<float>(m[k]));
      });
      store(dy + at, i, v);
    });
  }
}

// The pixels of a batch, whose values have addresses.
std::size_t rows_of(std::size_t batch, std::size_t pixels, std::size_t channels) {
  const std::size_t rows = checked_product(batch, pixels);
  checked_product(rows, channels);
  return rows;
}

}  // namespace

template <class T>
void scale_channels(Context& context, const T* x, const T* factors, T* y, std::size_t batch, std::size_t pixels,
                    std::size_t channels) {
  const std::size_t rows = rows_of(batch, pixels, channels);
  launch(scale_channels_kernel<T>, shape_for_packed_rows<T>(rows, channels), context.stream(), x, factors, y, rows,
         pixels, channels, packs_fit<T>(channels, x, factors, y));
}

template <class T>
void scale_channels_backward_factors(Context& context, const T* dy, const T* x, T* dfactors, std::size_t batch,
                                     std::size_t pixels, std::size_t channels) {
  rows_of(batch, pixels, channels);
  launch(scale_backward_factors_kernel<T>, shape_for_packed_rows<T>(batch, channels), context.stream(), dy, x, dfactors,
         batch, pixels, channels, packs_fit<T>(channels, dy, x, dfactors));
}

template <class T>
void scale_channels_backward_input(Context& context, T* dy, const T* factors, const T* dmean, float share,
                                   std::size_t batch, std::size_t pixels, std::size_t channels) {
  const std::size_t rows = rows_of(batch, pixels, channels);
  launch(scale_backward_input_kernel<T>, shape_for_packed_rows<T>(rows, channels), context.stream(), dy, factors, dmean,
         share, rows, pixels, channels, packs_fit<T>(channels, dy, factors, dmean));
}

#define OOMLAB_FEATURE_OPS(T)                                                                                    \
  template void norm_activation_backward(Context&, T*, const T*, const float*, const float*, const float*,       \
                                         const float*, std::size_t, std::size_t, Activation);                    \
  template void concatenate_channels(Context&, const T*, const T*, T*, std::size_t, std::size_t, std::size_t);   \
  template void split_channels(Context&, const T*, T*, T*, std::size_t, std::size_t, std::size_t);               \
  template void upsample_forward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, std::size_t,     \
                                 std::size_t);                                                                   \
  template void upsample_backward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, std::size_t,    \
                                  std::size_t);                                                                  \
  template void scale_channels(Context&, const T*, const T*, T*, std::size_t, std::size_t, std::size_t);         \
  template void scale_channels_backward_factors(Context&, const T*, const T*, T*, std::size_t, std::size_t,      \
                                                std::size_t);                                                    \
  template void scale_channels_backward_input(Context&, T*, const T*, const T*, float, std::size_t, std::size_t, \
                                              std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_FEATURE_OPS)

}  // namespace oomlab::nn
