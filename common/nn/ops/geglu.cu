#include "nn/ops/geglu.h"

#include <cmath>

#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// The share of a normal distribution below x: the exact GELU's gate.
__device__ inline float normal_share(float x) { return 0.5f * (1.0f + erff(x * 0.707106781f)); }
// Its density at x.
__device__ inline float normal_density(float x) { return 0.398942280f * exp_of(-0.5f * x * x); }

template <class T>
__global__ void geglu_kernel(const T* __restrict__ x, T* __restrict__ y, std::size_t rows, std::size_t width,
                             bool packs) {
  for (std::size_t row : row_range(rows)) {
    const T *const value = x + row * 2 * width, *const gate = value + width;
    for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(value, i);
      const V g = load<V>(gate, i);
      each_lane<V>([&](std::size_t k) {
        const auto b = static_cast<float>(g[k]);
        v[k] = static_cast<T>(static_cast<float>(v[k]) * (b * normal_share(b)));
      });
      store(y + row * width, i, v);
    });
  }
}

template <class T>
__global__ void geglu_backward_kernel(const T* __restrict__ dy, T* x, std::size_t rows, std::size_t width, bool packs) {
  for (std::size_t row : row_range(rows)) {
    T *const value = x + row * 2 * width, *const gate = value + width;
    for_packs<T>(BlockRange{}, width, packs, [&](auto d, std::size_t i) {
      using V = decltype(d);
      d = load<V>(dy + row * width, i);
      V v = load<V>(value, i), g = load<V>(gate, i);
      each_lane<V>([&](std::size_t k) {
        const float own = static_cast<float>(d[k]), a = static_cast<float>(v[k]), b = static_cast<float>(g[k]);
        const float share = normal_share(b);
        v[k] = static_cast<T>(own * (b * share));
        g[k] = static_cast<T>(own * a * fmaf(b, normal_density(b), share));
      });
      store(value, i, v);
      store(gate, i, g);
    });
  }
}

}  // namespace

template <class T>
void geglu_forward(Context& context, const T* x, T* y, std::size_t rows, std::size_t width) {
  launch(geglu_kernel<T>, shape_for_packed_rows<T>(rows, width), context.stream(), x, y, rows, width,
         packs_fit<T>(width, x, y));
}

template <class T>
void geglu_backward(Context& context, const T* dy, T* x, std::size_t rows, std::size_t width) {
  launch(geglu_backward_kernel<T>, shape_for_packed_rows<T>(rows, width), context.stream(), dy, x, rows, width,
         packs_fit<T>(width, dy, x));
}

#define OOMLAB_INSTANCES(T)                                                      \
  template void geglu_forward(Context&, const T*, T*, std::size_t, std::size_t); \
  template void geglu_backward(Context&, const T*, T*, std::size_t, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
