#pragma once
// What the kernels of this folder share: reading four floats at a time where the addresses allow it, and the
// elementary functions, which are the same arithmetic on every backend and plain enough for a compiler to
// vectorise.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cuda/launch.h"
#include "cuda/pack.h"

namespace oomlab::nn {

/// A Pack of one: what a kernel uses for the rest that fills no Pack, or for addresses that are not aligned.
template <class T>
struct Single {
  static constexpr std::size_t size = 1;
  T value[1];
  __host__ __device__ T& operator[](std::size_t i) { return value[i]; }
  __host__ __device__ const T& operator[](std::size_t i) const { return value[i]; }
};

/// The i-th V (a Pack<T> or a Single<T>) of an array of T.
template <class V, class T>
__device__ V load(const T* p, std::size_t i) {
  return reinterpret_cast<const V*>(p)[i];
}
/// The same place of it becomes v.
template <class V, class T>
__device__ void store(T* p, std::size_t i, const V& v) {
  reinterpret_cast<V*>(p)[i] = v;
}

/// f(0), …, f(V::size − 1), written out: in a loop around it, a compiler for the host then sees one vector
/// after the other instead of a small inner loop.
template <class V, class F>
__device__ void each_lane(F f) {
  [&]<std::size_t... k>(std::index_sequence<k...>) { (f(k), ...); }
  (std::make_index_sequence<V::size>{});
}

/// Visits 0…n−1 in packs where `packs` says that the addresses are aligned: body(Pack<T>{}, i) for the i-th pack,
/// body(Single<T>{}, i) for the i-th value of the rest.
template <class T = float, class Range, class Body>
__device__ void for_packs(Range range_of, std::size_t n, bool packs, Body body) {
  const std::size_t whole = packs ? n / Pack<T>::size : 0, done = whole * Pack<T>::size;
  for (std::size_t i : range_of(whole)) body(Pack<T>{}, i);
  for (std::size_t i : range_of(n - done)) body(Single<T>{}, done + i);
}
struct GridRange {
  __device__ auto operator()(std::size_t n) const { return grid_range(n); }
};
struct BlockRange {
  __device__ auto operator()(std::size_t n) const { return block_range(n); }
};

/// How many values of a row of T a thread takes at a time, into as many running sums.
template <class T>
inline constexpr std::size_t kLanes = std::max(kRowLanes, Pack<T>::size);

/// count values of T as floats: in packs, where those are aligned, or one by one.
template <bool kPacks, std::size_t count, class T>
__device__ void load_floats(float* to, const T* from) {
  using V = std::conditional_t<kPacks && count % Pack<T>::size == 0, Pack<T>, Single<T>>;
  for (std::size_t p = 0; p < count / V::size; ++p) {
    const V v = load<V>(from, p);
    for (std::size_t k = 0; k < V::size; ++k) to[p * V::size + k] = static_cast<float>(v[k]);
  }
}

/// And back.
template <bool kPacks, std::size_t count, class T>
__device__ void store_floats(T* to, const float* from) {
  using V = std::conditional_t<kPacks && count % Pack<T>::size == 0, Pack<T>, Single<T>>;
  for (std::size_t p = 0; p < count / V::size; ++p) {
    V v;
    for (std::size_t k = 0; k < V::size; ++k) v[k] = static_cast<T>(from[p * V::size + k]);
    store(to, p, v);
  }
}

/// The sum of what body(count, i, sums) adds to sums[0…count−1] for the elements i…i+count−1 of a row of T, over 0…n−1,
/// for all threads of the block. `count` is a std::integral_constant, kLanes<T> or 1.
template <class T, class Body>
__device__ float block_sum_over(std::size_t n, Body body) {
  constexpr std::size_t lanes = kLanes<T>;
  float sums[lanes];
  for (std::size_t k = 0; k < lanes; ++k) sums[k] = 0.0f;
  for (std::size_t i : block_range(n / lanes)) body(std::integral_constant<std::size_t, lanes>{}, i * lanes, sums);
  float all = 0.0f;
  for (std::size_t k = 0; k < lanes; ++k) all += sums[k];
  const std::size_t done = n / lanes * lanes;
  for (std::size_t i : block_range(n - done)) body(std::integral_constant<std::size_t, 1>{}, done + i, &all);
  return block_sum(all);
}

/// Adds up what add(part, i) adds to part[0…count−1] for every i in 0…n−1, in short sums, so that a long one loses
/// nothing.
template <std::size_t count, class Add>
__device__ void sum_in_parts(float (&sums)[count], std::size_t n, Add add) {
  constexpr std::size_t length = 64;
  for (std::size_t k = 0; k < count; ++k) sums[k] = 0.0f;
  for (std::size_t first = 0; first < n; first += length) {
    const std::size_t end = first + length < n ? first + length : n;
    float part[count];
    for (std::size_t k = 0; k < count; ++k) part[k] = 0.0f;
    for (std::size_t i = first; i < end; ++i) add(part, i);
    for (std::size_t k = 0; k < count; ++k) sums[k] += part[k];
  }
}

/// Whether all addresses are null or aligned for packs. Device buffers always are; pieces of a larger buffer
/// may not be.
template <class... Pointers>
__host__ __device__ bool aligned_for_packs(Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// The shape for row_range(rows) where a row has only `cells` things to share out: no idle warps in short
/// rows.
inline LaunchShape shape_for_short_rows(std::size_t rows, std::size_t cells, std::size_t shared_bytes = 0) {
  LaunchShape shape = shape_for_rows(rows, shared_bytes);
  shape.block.x =
      static_cast<unsigned>(std::min<std::size_t>(shape.block.x, std::max<std::size_t>(1, (cells + 31) / 32) * 32));
  return shape;
}

/// Whether [rows, width] starts and continues where packs may be read.
template <class T, class... Pointers>
bool packs_fit(std::size_t width, Pointers... pointers) {
  return width % Pack<T>::size == 0 && aligned_for_packs(pointers...);
}

/// shape_for_short_rows() where a cell is a pack.
template <class T>
LaunchShape shape_for_packed_rows(std::size_t rows, std::size_t width) {
  return shape_for_short_rows(rows, width / Pack<T>::size);
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

/// 1 / (1 + e^−x).
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// GELU, tanh form: x/2 · (1 + tanh u) with u = √(2/π) (x + 0.044715 x³), which is x · s with s = 1 / (1 +
// e^(−2u)).
__device__ inline float gelu_gate(float x) {
  const float twice_u = 1.5957691216f * fmaf(0.044715f * x, x * x, x);
  return sigmoid(twice_u);
}
/// GELU (Hendrycks and Gimpel, 2016), in its tanh form.
__device__ inline float gelu(float x) { return x * gelu_gate(x); }
/// Its derivative at x.
__device__ inline float gelu_derivative(float x) {
  x = clamp(x, -30.0f, 30.0f);  // flat beyond, and the square must not overflow
  const float s = gelu_gate(x);
  const float twice_du = 1.5957691216f * fmaf(3.0f * 0.044715f * x, x, 1.0f);
  return fmaf(x * s * (1.0f - s), twice_du, s);
}

}  // namespace oomlab::nn
