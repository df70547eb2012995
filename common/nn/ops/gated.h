#pragma once
// A gated activation, whatever its arithmetic: rows of 2 · width values become rows of width, each value from one of the
// first half and the one at the same place of the second half, the one of which lets the other through.
//
// Gated: float of(float first, float second), and Halves gradients(float dy, float first, float second).

#include <cstddef>

#include "nn/ops/kernel.h"

namespace oomlab::nn {

/// Two values at the same place of a row's halves.
struct Halves {
  float first, second;
};

/// y[width] from a row [2 · width], which y may be the first half of.
template <class Gated, class T>
__device__ void gated_row(const T* row, T* y, std::size_t width, bool packs) {
  const T *const first = row, *const second = row + width;
  for_packs<T>(BlockRange{}, width, packs, [&](auto a, std::size_t i) {
    using V = decltype(a);
    a = load<V>(first, i);
    const V b = load<V>(second, i);
    each_lane<V>(
        [&](std::size_t k) { a[k] = static_cast<T>(Gated::of(static_cast<float>(a[k]), static_cast<float>(b[k]))); });
    store(y, i, a);
  });
}

/// A row [2 · width] becomes its gradient, in place; dy [width].
template <class Gated, class T>
__device__ void gated_row_backward(const T* dy, T* row, std::size_t width, bool packs) {
  T *const first = row, *const second = row + width;
  for_packs<T>(BlockRange{}, width, packs, [&](auto d, std::size_t i) {
    using V = decltype(d);
    d = load<V>(dy, i);
    V a = load<V>(first, i), b = load<V>(second, i);
    each_lane<V>([&](std::size_t k) {
      const Halves gradients =
          Gated::gradients(static_cast<float>(d[k]), static_cast<float>(a[k]), static_cast<float>(b[k]));
      a[k] = static_cast<T>(gradients.first);
      b[k] = static_cast<T>(gradients.second);
    });
    store(first, i, a);
    store(second, i, b);
  });
}

}  // namespace oomlab::nn
