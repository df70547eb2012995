#pragma once
// What the fused kernels of attention do with a tile in shared memory: fetch it, and multiply it by another one. A tile has
// at.tile rows of at.depth floats.

#include <algorithm>
#include <type_traits>

#include "nn/ops/attention_fused_layout.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

// Columns that a thread computes side by side.
constexpr std::size_t kWide = std::max<std::size_t>(4, kRowLanes);

inline std::size_t shared_bytes(std::size_t tile, std::size_t depth, std::size_t matrices) {
  return (matrices * tile * depth + 2 * tile * tile + 4 * tile) * sizeof(float);
}

// Rows of T [rows, depth], `stride` apart, to shared memory as floats, to[place(row, column)]; rows beyond are zero.
template <class T, class Place>
__device__ void take_to(float* to, const T* from, std::size_t stride, std::size_t rows, const FusedLayout& at,
                        Place place) {
  for (std::size_t i : block_range(at.tile * at.depth)) {
    const std::size_t row = i / at.depth, column = i % at.depth;
    to[place(row, column)] = row < rows ? static_cast<float>(from[row * stride + column]) : 0.0f;
  }
}
template <class T>
__device__ void take(float* to, const T* from, std::size_t stride, std::size_t rows, const FusedLayout& at) {
  take_to(to, from, stride, rows, at, [&](std::size_t row, std::size_t column) { return row * at.depth + column; });
}
template <class T>
__device__ void take_transposed(float* to, const T* from, std::size_t stride, std::size_t rows, const FusedLayout& at) {
  take_to(to, from, stride, rows, at, [&](std::size_t row, std::size_t column) { return column * at.tile + row; });
}

// Calls body(lanes, row, column) for the rows × columns of a matrix, `lanes` columns at a time: kWide of them, or one
// at a row's end. A thread has its own lanes.
template <class Body>
__device__ void each_lanes(std::size_t rows, std::size_t columns, Body body) {
  const std::size_t groups = columns / kWide, rest = columns - groups * kWide;
  for (std::size_t i : block_range(rows * groups))
    body(std::integral_constant<std::size_t, kWide>{}, i / groups, i % groups * kWide);
  for (std::size_t i : block_range(rows * rest))
    body(std::integral_constant<std::size_t, 1>{}, i / rest, groups * kWide + i % rest);
}

// to[r, c] = Σ a[r, i] · b[i, c] over i, r and c in the tile: a [tile, depth], b transposed [depth, tile].
__device__ inline void products(float* to, const float* a, const float* b_transposed, const FusedLayout& at) {
  each_lanes(at.tile, at.tile, [&](auto lanes, std::size_t row, std::size_t column) {
    float sum[lanes];
    for (std::size_t k = 0; k < lanes; ++k) sum[k] = 0.0f;
    for (std::size_t i = 0; i < at.depth; ++i) {
      const float left = a[row * at.depth + i];
      for (std::size_t k = 0; k < lanes; ++k) sum[k] = fmaf(left, b_transposed[i * at.tile + column + k], sum[k]);
    }
    for (std::size_t k = 0; k < lanes; ++k) to[row * at.tile + column + k] = sum[k];
  });
}

// to[r, c] = to[r, c] · kept(r) + Σ left(r, i) · right[i, c] over `count` values of i: to and right [tile, depth].
template <class Kept, class Left>
__device__ void add_products(float* to, std::size_t rows, std::size_t count, Kept kept, Left left, const float* right,
                             const FusedLayout& at) {
  each_lanes(rows, at.depth, [&](auto lanes, std::size_t row, std::size_t column) {
    float sum[lanes];
    for (std::size_t k = 0; k < lanes; ++k) sum[k] = to[row * at.depth + column + k] * kept(row);
    for (std::size_t i = 0; i < count; ++i) {
      const float factor = left(row, i);
      for (std::size_t k = 0; k < lanes; ++k) sum[k] = fmaf(factor, right[i * at.depth + column + k], sum[k]);
    }
    for (std::size_t k = 0; k < lanes; ++k) to[row * at.depth + column + k] = sum[k];
  });
}

}  // namespace oomlab::nn
