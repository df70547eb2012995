#pragma once
// The rules of AdamW and SGD for one number, the same bits on a GPU and on a processor, in packs and one by one: every
// product that is added to something is an explicit fmaf, so that no compiler chooses where to round, and division and
// root are IEEE's (nvcc's default, too). All kernels of AdamW and SGD have their rule from here, and tests/sass looks
// at what nvcc made of it. Beside it, rounding to BF16 up or down at random.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "nn/optimizer/optimizer.h"

namespace oomlab::nn {

/// What is the same for all numbers of a step.
struct AdamWFactors {
  float beta1, beta2, not_beta1, not_beta2, eps;
  float keep;             ///< 1 − lr · weight_decay
  float rate;             ///< lr / (1 − beta1^t)
  float second_unbiased;  ///< 1 / (1 − beta2^t)
};
/// Those of them that are another one in each step.
struct BiasCorrections {
  float rate, second_unbiased;
};
/// `step` counts from 1.
__host__ __device__ inline BiasCorrections bias_corrections(const AdamWSettings& s, std::uint64_t step) {
  const auto t = static_cast<double>(step);
  return {static_cast<float>(static_cast<double>(s.lr) / (1.0 - pow(static_cast<double>(s.beta1), t))),
          static_cast<float>(1.0 / (1.0 - pow(static_cast<double>(s.beta2), t)))};
}
/// `step` counts from 1.
inline AdamWFactors adamw_factors(const AdamWSettings& s, std::uint64_t step) {
  const BiasCorrections now = bias_corrections(s, step);
  return {s.beta1,        s.beta2,
          1.0f - s.beta1, 1.0f - s.beta2,
          s.eps,          fmaf(-s.lr, s.weight_decay, 1.0f),
          now.rate,       now.second_unbiased};
}
/// With the corrections that the device has: BiasCorrections, or null, and nothing changes.
__device__ inline void correct_bias(AdamWFactors& s, const float* corrections) {
  if (!corrections) return;
  s.rate = corrections[0];
  s.second_unbiased = corrections[1];
}

/// AdamW's two moments (Loshchilov and Hutter, 2019) after this gradient.
__host__ __device__ inline void adamw_moments(const AdamWFactors& s, float gradient, float& m, float& v) {
  m = fmaf(s.beta1, m, s.not_beta1 * gradient);
  v = fmaf(s.beta2, v, s.not_beta2 * gradient * gradient);
}
/// The weight that follows from them; the decay is decoupled from the gradient.
__host__ __device__ inline float adamw_weight(const AdamWFactors& s, float m, float v, float w) {
  return fmaf(s.keep, w, -(s.rate * m / (sqrtf(v * s.second_unbiased) + s.eps)));
}

/// SGD: the weight after a step along `gradient`, or along the velocity.
__host__ __device__ inline float sgd_weight(float lr, float gradient, float w) { return fmaf(-lr, gradient, w); }
/// The velocity of SGD with momentum after this gradient.
__host__ __device__ inline float sgd_velocity(float momentum, float gradient, float v) {
  return fmaf(momentum, v, gradient);
}

/// Sixteen random bits, or as good: a hash (C. Wellons, "lowbias32") of a number's place and a key, which is another
/// one for each tensor and step. So a run is repeatable, however its work is shared out.
__host__ __device__ inline std::uint32_t random_bits(std::uint32_t key, std::size_t i) {
  auto x = static_cast<std::uint32_t>(i) * 0x9e3779b1u + key;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x & 0xffffu;
}
/// The key of a tensor's step.
inline std::uint32_t rounding_key(std::uint64_t seed, std::uint64_t step, std::size_t tensor) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + step * 0xbf58476d1ce4e5b9u + tensor * 0x94d049bb133111ebu;
  for (const int shift : {30, 27}) x = (x ^ x >> shift) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::uint32_t>(x >> 32);
}

/// x as BF16, a neighbour below or above: the nearer one more often, so that x is the mean of what it becomes. A
/// BF16 number is the upper half of a float: the lower half and random bits carry over into it, or not. `bits` <
/// 65,536.
__host__ __device__ inline __nv_bfloat16 rounded_at_random(float x, std::uint32_t bits) {
  std::uint32_t all;
  memcpy(&all, &x, sizeof x);
  if ((all & 0x7f800000u) != 0x7f800000u) all += bits;  // neither infinite nor NaN
  const auto upper = static_cast<std::uint16_t>(all >> 16);
  __nv_bfloat16 rounded;
  memcpy(static_cast<void*>(&rounded), &upper, sizeof upper);
  return rounded;
}
// In the type that the last argument has: a float is not rounded.
__host__ __device__ inline float rounded_at_random(float x, std::uint32_t, float) { return x; }
__host__ __device__ inline __nv_bfloat16 rounded_at_random(float x, std::uint32_t bits, __nv_bfloat16) {
  return rounded_at_random(x, bits);
}

}  // namespace oomlab::nn
