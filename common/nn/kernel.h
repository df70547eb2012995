#pragma once
// What the kernels of this folder share: reading four floats at a time where the addresses allow it, and the
// elementary functions, which are the same arithmetic on every backend and plain enough for a compiler to
// vectorise.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cuda/launch.h"
#include "cuda/pack.h"

namespace oomlab::nn {

/// A Pack of one: what a kernel uses for the rest that fills no Pack, or for addresses that are not aligned.
struct Single {
  static constexpr std::size_t size = 1;
  float value[1];
  __host__ __device__ float& operator[](std::size_t i) { return value[i]; }
  __host__ __device__ const float& operator[](std::size_t i) const { return value[i]; }
};

/// The i-th V of an array of floats.
template <class V>
__device__ V load(const float* p, std::size_t i) {
  return reinterpret_cast<const V*>(p)[i];
}
template <class V>
__device__ void store(float* p, std::size_t i, const V& v) {
  reinterpret_cast<V*>(p)[i] = v;
}

/// f(0), …, f(V::size − 1), written out: in a loop around it, a compiler for the host then sees one vector
/// after the other instead of a small inner loop.
template <class V, class F>
__device__ void each_lane(F f) {
  [&]<std::size_t... k>(std::index_sequence<k...>) { (f(k), ...); }
  (std::make_index_sequence<V::size>{});
}

/// Visits the floats first…last−1 of `range_of(n)` in packs where `packs` says that the addresses are
/// aligned: body(Pack<float>{}, i) for the i-th pack, body(Single{}, i) for the i-th float.
template <class Range, class Body>
__device__ void for_packs(Range range_of, std::size_t n, bool packs, Body body) {
  const std::size_t whole = packs ? n / Pack<float>::size : 0, done = whole * Pack<float>::size;
  for (std::size_t i : range_of(whole)) body(Pack<float>{}, i);
  for (std::size_t i : range_of(n - done)) body(Single{}, done + i);
}
struct GridRange {
  __device__ auto operator()(std::size_t n) const { return grid_range(n); }
};
struct BlockRange {
  __device__ auto operator()(std::size_t n) const { return block_range(n); }
};

/// Whether all addresses are null or aligned for packs. Device buffers always are; pieces of a larger buffer
/// may not be.
template <class... Pointers>
bool aligned_for_packs(Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % sizeof(Pack<float>) == 0) && ...);
}

/// The shape for row_range(rows) where a row has only `cells` things to share out: no idle warps in short
/// rows.
inline LaunchShape shape_for_short_rows(std::size_t rows, std::size_t cells, std::size_t shared_bytes = 0) {
  LaunchShape shape = shape_for_rows(rows, shared_bytes);
  shape.block.x =
      static_cast<unsigned>(std::min<std::size_t>(shape.block.x, std::max<std::size_t>(1, (cells + 31) / 32) * 32));
  return shape;
}

/// x, at least low < 0 and at most high > 0; NaN stays NaN. In integers, where a compiler for the host sees a
/// minimum: from a choice between floats it makes a path of its own for each bound, and vectorises all three.
__device__ inline float clamp(float x, float low, float high) {
  std::uint32_t bits, low_bits;
  std::int32_t signed_bits, high_bits;
  memcpy(&bits, &x, sizeof x);
  memcpy(&low_bits, &low, sizeof low);
  memcpy(&high_bits, &high, sizeof high);
  bits = bits < low_bits ? bits : low_bits;  // unsigned: every negative float is above every positive one
  signed_bits = static_cast<std::int32_t>(bits);
  signed_bits = signed_bits < high_bits ? signed_bits : high_bits;
  float clamped;
  memcpy(&clamped, &signed_bits, sizeof clamped);
  return x == x ? clamped : x;
}

/// e^x to about one unit in the last place for −87 ≤ x ≤ 88, clamped outside. x = k ln 2 + r, and a
/// polynomial in r.
__device__ inline float exp_of(float x) {
  x = clamp(x, -87.0f, 88.0f);
  const float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const float k = (x * 1.44269504f + magic) - magic;
  float r = fmaf(k, -0.693145752f, x);
  r = fmaf(k, -1.42860677e-6f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  const std::int32_t bits = (static_cast<std::int32_t>(k) + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return p * power;
}

// GELU, tanh form: x/2 · (1 + tanh u) with u = √(2/π) (x + 0.044715 x³), which is x · s with s = 1 / (1 +
// e^(−2u)).
__device__ inline float gelu_gate(float x) {
  const float twice_u = 1.5957691216f * fmaf(0.044715f * x, x * x, x);
  return 1.0f / (1.0f + exp_of(-twice_u));
}
__device__ inline float gelu(float x) { return x * gelu_gate(x); }
__device__ inline float gelu_derivative(float x) {
  x = clamp(x, -30.0f, 30.0f);  // flat beyond, and the square must not overflow
  const float s = gelu_gate(x);
  const float twice_du = 1.5957691216f * fmaf(3.0f * 0.044715f * x, x, 1.0f);
  return fmaf(x * s * (1.0f - s), twice_du, s);
}

}  // namespace oomlab::nn
