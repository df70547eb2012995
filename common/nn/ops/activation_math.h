#pragma once
// The activations as arithmetic on one value, and the choice of a kernel that has one of them compiled in.

#include <stdexcept>
#include <string>
#include <type_traits>

#include "nn/ops/kernel.h"
#include "plan/model/activation.h"

namespace oomlab::nn {

/// min(max(x + 3, 0), 6) / 6; NaN stays NaN.
__device__ inline float hard_sigmoid(float x) { return (clamp(x, -3.0f, 3.0f) + 3.0f) * (1.0f / 6.0f); }

/// x · sigmoid(slope · x): with a slope of 1 SiLU, of kQuickGelu quick GELU.
__device__ inline float sigmoid_weighted(float x, float slope) { return x * sigmoid(slope * x); }
inline constexpr float kQuickGelu = 1.702f;
/// The derivative of SiLU at x.
__device__ inline float silu_derivative(float x) {
  x = clamp(x, -100.0f, 100.0f);  // flat beyond, and infinity times zero is not a number
  const float s = sigmoid(x);
  return s * fmaf(x, 1.0f - s, 1.0f);
}

/// The activation of x.
template <Activation A>
__device__ float activate(float x) {
  if constexpr (A == Activation::relu) return x > 0.0f ? x : 0.0f;
  if constexpr (A == Activation::gelu) return gelu(x);
  if constexpr (A == Activation::hard_sigmoid) return hard_sigmoid(x);
  if constexpr (A == Activation::hard_swish) return x * hard_sigmoid(x);
  if constexpr (A == Activation::silu) return sigmoid_weighted(x, 1.0f);
  if constexpr (A == Activation::quick_gelu) return sigmoid_weighted(x, kQuickGelu);
  if constexpr (A == Activation::exact_gelu) return x * normal_share(x);
  return x;
}

/// From what activation_backward() says is saved: hard sigmoid's output, either of ReLU, the others' input. Not of quick
/// and exact GELU: text encoders have them, and those are not trained.
template <Activation A>
__device__ float derivative(float saved) {
  if constexpr (A == Activation::relu) return saved > 0.0f ? 1.0f : 0.0f;
  if constexpr (A == Activation::gelu) return gelu_derivative(saved);
  if constexpr (A == Activation::hard_sigmoid) return saved > 0.0f && saved < 1.0f ? 1.0f / 6.0f : 0.0f;
  if constexpr (A == Activation::hard_swish) {
    const float between = (2.0f * saved + 3.0f) * (1.0f / 6.0f);
    return saved <= -3.0f ? 0.0f : saved >= 3.0f ? 1.0f : between;
  }
  if constexpr (A == Activation::silu) return silu_derivative(saved);
  static_assert(A != Activation::quick_gelu && A != Activation::exact_gelu, "nothing trains through them");
  return 1.0f;
}

/// What a batch norm makes of z before its activation. One expression, so that forward and backward see the same.
__device__ inline float normalized(float z, float mean, float inv_std, float gamma, float beta) {
  return (z - mean) * inv_std * gamma + beta;
}

template <Activation A>
using ActivationConstant = std::integral_constant<Activation, A>;

/// work(ActivationConstant<activation>{}), where that is one of `taken`: those that a model has there, since a kernel is
/// compiled for each. Throws std::invalid_argument for others; `there` names the place: "behind a batch norm".
template <Activation first, Activation... taken, class Work>
auto with_activation(const char* there, Activation activation, Work work) {
  if (activation == first) return work(ActivationConstant<first>{});
  if constexpr (sizeof...(taken) > 0)
    return with_activation<taken...>(there, activation, work);
  else
    throw std::invalid_argument(std::string("there is no ") + name_of(activation) + " " + there);
}

}  // namespace oomlab::nn
