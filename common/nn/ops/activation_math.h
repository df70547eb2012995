#pragma once
// The activations as arithmetic on one value, and the choice of a kernel that has one of them compiled in.

#include <type_traits>

#include "nn/ops/kernel.h"

namespace oomlab::nn {

/// min(max(x + 3, 0), 6) / 6; NaN stays NaN.
__device__ inline float hard_sigmoid(float x) { return (clamp(x, -3.0f, 3.0f) + 3.0f) * (1.0f / 6.0f); }

/// x · sigmoid(slope · x): with a slope of 1 SiLU, of kQuickGelu quick GELU.
__device__ inline float sigmoid_weighted(float x, float slope) { return x * sigmoid(slope * x); }
/// Its derivative at x.
__device__ inline float sigmoid_weighted_derivative(float x, float slope) {
  x = clamp(x, -100.0f, 100.0f);  // flat beyond, and infinity times zero is not a number
  const float s = sigmoid(slope * x);
  return s * fmaf(slope * x, 1.0f - s, 1.0f);
}
inline constexpr float kQuickGelu = 1.702f;

/// The activation of x.
template <Activation A>
__device__ float activate(float x) {
  if constexpr (A == Activation::relu) return x > 0.0f ? x : 0.0f;
  if constexpr (A == Activation::gelu) return gelu(x);
  if constexpr (A == Activation::hard_sigmoid) return hard_sigmoid(x);
  if constexpr (A == Activation::hard_swish) return x * hard_sigmoid(x);
  if constexpr (A == Activation::silu) return sigmoid_weighted(x, 1.0f);
  if constexpr (A == Activation::quick_gelu) return sigmoid_weighted(x, kQuickGelu);
  return x;
}

/// From what activation_backward() says is saved: hard sigmoid's output, either of ReLU, the others' input.
template <Activation A>
__device__ float derivative(float saved) {
  if constexpr (A == Activation::relu) return saved > 0.0f ? 1.0f : 0.0f;
  if constexpr (A == Activation::gelu) return gelu_derivative(saved);
  if constexpr (A == Activation::hard_sigmoid) return saved > 0.0f && saved < 1.0f ? 1.0f / 6.0f : 0.0f;
  if constexpr (A == Activation::hard_swish) {
    const float between = (2.0f * saved + 3.0f) * (1.0f / 6.0f);
    return saved <= -3.0f ? 0.0f : saved >= 3.0f ? 1.0f : between;
  }
  if constexpr (A == Activation::silu) return sigmoid_weighted_derivative(saved, 1.0f);
  if constexpr (A == Activation::quick_gelu) return sigmoid_weighted_derivative(saved, kQuickGelu);
  return 1.0f;
}

/// What a batch norm makes of z before its activation. One expression, so that forward and backward see the same.
__device__ inline float normalized(float z, float mean, float inv_std, float gamma, float beta) {
  return (z - mean) * inv_std * gamma + beta;
}

template <Activation A>
using ActivationConstant = std::integral_constant<Activation, A>;

/// work(ActivationConstant<activation>{}).
template <class Work>
auto with_activation(Activation activation, Work work) {
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: return work(ActivationConstant<Activation::relu>{});
    case Activation::gelu: return work(ActivationConstant<Activation::gelu>{});
    case Activation::hard_sigmoid: return work(ActivationConstant<Activation::hard_sigmoid>{});
    case Activation::hard_swish: return work(ActivationConstant<Activation::hard_swish>{});
    case Activation::silu: return work(ActivationConstant<Activation::silu>{});
    case Activation::quick_gelu: return work(ActivationConstant<Activation::quick_gelu>{});
  }
  return work(ActivationConstant<Activation::none>{});
}

}  // namespace oomlab::nn
