#pragma once
// Images that become larger by a whole factor: their sizes, and what a pixel's gradient is the sum of.

#include <cuda_runtime.h>

#include <cstddef>
#include <stdexcept>

#include "nn/ops/kernel.h"
#include "plan/bytes.h"

namespace oomlab::nn {

/// An enlarged image: the sizes are of the smaller one. A parameter of kernels.
struct Enlarged {
  std::size_t batch, height, width, channels, factor;
  __host__ __device__ std::size_t out_height() const { return height * factor; }
  __host__ __device__ std::size_t out_width() const { return width * factor; }
};
/// Throws std::invalid_argument for a factor of 0, std::length_error for sizes beyond 64 bits.
inline Enlarged enlarged(std::size_t batch, std::size_t height, std::size_t width, std::size_t channels,
                         std::size_t factor) {
  if (factor == 0) throw std::invalid_argument("an image cannot be enlarged by a factor of 0");
  const std::size_t lines = checked_product(batch, checked_product(height, factor));
  checked_product(checked_product(lines, checked_product(width, factor)), channels);
  return {batch, height, width, channels, factor};
}

/// dx[channels] of a pixel: the sum of weight · dy[channels] over the pixels of the enlarged image that it has a part in.
/// visit(add) calls add(dy of such a pixel, weight) for each of them; they are added in that order, in FP32.
template <class T, class Visit>
__device__ void gather_gradient(T* dx, std::size_t channels, bool packs, Visit visit) {
  for_packs<T>(BlockRange{}, channels, packs, [&](auto d, std::size_t i) {
    using V = decltype(d);
    float sum[V::size];
    each_lane<V>([&](std::size_t k) { sum[k] = 0.0f; });
    visit([&](const T* dy, float weight) {
      d = load<V>(dy, i);
      each_lane<V>([&](std::size_t k) { sum[k] += weight * static_cast<float>(d[k]); });
    });
    each_lane<V>([&](std::size_t k) { d[k] = static_cast<T>(sum[k]); });
    store(dx, i, d);
  });
}

}  // namespace oomlab::nn
