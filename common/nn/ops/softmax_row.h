#pragma once
// What softmax and cross-entropy make of a row: its maximum, and the sum of its exponentials.

#include <cmath>
#include <cstddef>

#include "nn/ops/kernel.h"

namespace oomlab::nn {

/// The largest of x[0…n), for all threads of the block.
template <class T, bool kPacks>
__device__ float block_max_over(const T* x, std::size_t n) {
  constexpr std::size_t lanes = kLanes<T>;
  float largest[lanes];
  for (std::size_t k = 0; k < lanes; ++k) largest[k] = -INFINITY;
  for (std::size_t i : block_range(n / lanes)) {
    float v[lanes];
    load_floats<kPacks, lanes>(v, x + i * lanes);
    for (std::size_t k = 0; k < lanes; ++k) largest[k] = largest[k] < v[k] ? v[k] : largest[k];
  }
  float all = largest[0];
  for (std::size_t k = 1; k < lanes; ++k) all = all < largest[k] ? largest[k] : all;
  const std::size_t done = n / lanes * lanes;
  for (std::size_t i : block_range(n - done)) {
    const float v = static_cast<float>(x[done + i]);
    all = all < v ? v : all;
  }
  return block_max(all);
}

/// The sum of e^(scale · (x − largest)), which with kStore also takes the place of x.
template <class T, bool kPacks, bool kStore, class X>
__device__ float block_exp_sum(X* x, std::size_t n, float largest, float scale) {
  return block_sum_over<T>(n, [&](auto count, std::size_t i, float* sums) {
    float v[count];
    load_floats<kPacks, count>(v, x + i);
    for (std::size_t k = 0; k < count; ++k) {
      v[k] = exp_of((v[k] - largest) * scale);
      sums[k] += v[k];
    }
    if constexpr (kStore) store_floats<kPacks, count>(x + i, v);
  });
}

}  // namespace oomlab::nn
