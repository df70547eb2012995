#pragma once
// What CUDA has for kernels beside its language, and the host runtime has for readers only: functions that every kernel may call.
// Names and results are CUDA's; the fast functions (__expf) are as exact here as the slow ones. bench/puzzle --help lists all of them.

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// -------------------------------------------------------------------------------------------------------------- atomics

namespace oomlab::host::detail {

/// What was there before; `change` makes the new value of it.
template <class T, class Change>
T atomically(T* p, Change change) {
  const std::atomic_ref shared(*p);
  T old = shared.load(std::memory_order_relaxed);
  while (!shared.compare_exchange_weak(old, change(old), std::memory_order_relaxed)) {
  }
  return old;
}

}  // namespace oomlab::host::detail

#define OOMLAB_ATOMIC(name, T, result)                                              \
  inline T name(T* p, T v) {                                                        \
    return oomlab::host::detail::atomically(p, [v](T old) -> T { return result; }); \
  }
OOMLAB_ATOMIC(atomicSub, int, old - v)
OOMLAB_ATOMIC(atomicSub, unsigned, old - v)
OOMLAB_ATOMIC(atomicMax, int, old > v ? old : v)
OOMLAB_ATOMIC(atomicMax, unsigned, old > v ? old : v)
OOMLAB_ATOMIC(atomicMax, unsigned long long, old > v ? old : v)
OOMLAB_ATOMIC(atomicMin, int, old < v ? old : v)
OOMLAB_ATOMIC(atomicMin, unsigned, old < v ? old : v)
OOMLAB_ATOMIC(atomicMin, unsigned long long, old < v ? old : v)
OOMLAB_ATOMIC(atomicAnd, int, old& v)
OOMLAB_ATOMIC(atomicAnd, unsigned, old& v)
OOMLAB_ATOMIC(atomicOr, int, old | v)
OOMLAB_ATOMIC(atomicOr, unsigned, old | v)
OOMLAB_ATOMIC(atomicXor, int, old ^ v)
OOMLAB_ATOMIC(atomicXor, unsigned, old ^ v)
OOMLAB_ATOMIC(atomicExch, int, ((void)old, v))
OOMLAB_ATOMIC(atomicExch, unsigned, ((void)old, v))
OOMLAB_ATOMIC(atomicExch, unsigned long long, ((void)old, v))
OOMLAB_ATOMIC(atomicExch, float, ((void)old, v))
#undef OOMLAB_ATOMIC

#define OOMLAB_ATOMIC_CAS(T)                                                             \
  inline T atomicCAS(T* p, T expected, T v) {                                            \
    std::atomic_ref(*p).compare_exchange_strong(expected, v, std::memory_order_relaxed); \
    return expected;                                                                     \
  }
OOMLAB_ATOMIC_CAS(int)
OOMLAB_ATOMIC_CAS(unsigned)
OOMLAB_ATOMIC_CAS(unsigned long long)
#undef OOMLAB_ATOMIC_CAS

inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// ------------------------------------------------------------------------------------------------------------ arithmetic

inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline long max(long a, long b) { return a > b ? a : b; }
inline long min(long a, long b) { return a < b ? a : b; }
inline unsigned long max(unsigned long a, unsigned long b) { return a > b ? a : b; }
inline unsigned long min(unsigned long a, unsigned long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }

inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }  // of NaN 0, as there
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float2int_rn(float x) { return int(std::rint(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline float __int2float_rn(int x) { return float(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
template <class T>
T __ldg(const T* p) {
  return *p;
}
// Macros, because the C library has functions of these names that nobody is to call.
#define __expf(x) std::exp(float(x))
#define __exp10f(x) std::pow(10.0f, float(x))
#define __logf(x) std::log(float(x))
#define __log2f(x) std::log2(float(x))
#define __log10f(x) std::log10(float(x))
#define __powf(x, y) std::pow(float(x), float(y))
#define __sinf(x) std::sin(float(x))
#define __cosf(x) std::cos(float(x))

// ---------------------------------------------------------------------------------------------------------- short vectors

#define OOMLAB_SHORT_VECTORS(T, name)                        \
  struct alignas(2 * sizeof(T)) name##2 {                    \
    T x, y;                                                  \
  };                                                         \
  struct alignas(4 * sizeof(T)) name##4 {                    \
    T x, y, z, w;                                            \
  };                                                         \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
OOMLAB_SHORT_VECTORS(float, float)
OOMLAB_SHORT_VECTORS(int, int)
OOMLAB_SHORT_VECTORS(unsigned, uint)
#undef OOMLAB_SHORT_VECTORS

// ------------------------------------------------------------------------------------------------------------------ warps

inline constexpr int warpSize = 32;
inline constexpr unsigned OOMLAB_WHOLE_WARP = 0xffffffffu;

namespace oomlab::host::detail {

/// The calling thread's number in its block; where those of its warp meet that the mask names.
unsigned thread_of_block();
void warp_barrier(unsigned mask);

inline int lane() { return int(thread_of_block() % 32); }
/// The value that this lane of the warp gives; the caller's own where the lane does not take part.
template <class T>
T of_lane(unsigned mask, const T& value, int from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 64);
  const unsigned me = thread_of_block();
  std::memcpy(block_slot(me), &value, sizeof value);
  warp_barrier(mask);
  T result = value;
  if (mask >> from & 1) std::memcpy(&result, block_slot(me / 32 * 32 + unsigned(from)), sizeof result);
  warp_barrier(mask);  // the slots may be written again by the next call
  return result;
}

}  // namespace oomlab::host::detail

inline void __syncwarp(unsigned mask = OOMLAB_WHOLE_WARP) { oomlab::host::detail::warp_barrier(mask); }

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = warpSize) {
  const int first = oomlab::host::detail::lane() / width * width;
  return oomlab::host::detail::of_lane(mask, value, first + (from & (width - 1)));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = warpSize) {
  const int me = oomlab::host::detail::lane();
  return oomlab::host::detail::of_lane(mask, value, me % width + int(by) < width ? me + int(by) : me);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize) {
  const int me = oomlab::host::detail::lane();
  return oomlab::host::detail::of_lane(mask, value, me % width >= int(by) ? me - int(by) : me);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = warpSize) {
  const int me = oomlab::host::detail::lane(), from = me ^ with;
  return oomlab::host::detail::of_lane(mask, value, from / width <= me / width && from < warpSize ? from : me);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned all = 0;
  for (int from = 0; from < warpSize; ++from)
    if (mask >> from & 1) all |= unsigned(oomlab::host::detail::of_lane(mask, predicate != 0, from)) << from;
  return all;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
