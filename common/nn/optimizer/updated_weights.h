#pragma once
// Weights as an optimizer's kernels read and write them: part of optimizer.h.

#include <cuda_bf16.h>

#include <type_traits>

#include "nn/ops/kernel.h"
#include "nn/optimizer/adamw_rule.h"
#include "nn/optimizer/optimizer.h"

namespace oomlab::nn {

// A tensor's weights, as an update reads and writes them: lanes at a time, from element `at` on.
template <class T, WeightForm kForm>
struct Weights {
  T* value;
  float* master;
  std::uint32_t key;  // of stochastic rounding

  template <bool kPacks, std::size_t lanes>
  __device__ void load(float* w, std::size_t at) const {
    if constexpr (kForm == WeightForm::master)
      load_floats<kPacks, lanes>(w, master + at);
    else
      load_floats<kPacks, lanes>(w, value + at);
  }
  template <bool kPacks, std::size_t lanes>
  __device__ void store(float* w, std::size_t at) const {
    if constexpr (kForm == WeightForm::master) store_floats<kPacks, lanes>(master + at, w);
    if constexpr (kForm == WeightForm::stochastic)
      for (std::size_t k = 0; k < lanes; ++k)
        w[k] = static_cast<float>(rounded_at_random(w[k], random_bits(key, at + k), T{}));
    store_floats<kPacks, lanes>(value + at, w);  // to the nearest, where it is none of T yet
  }
};

/// What gradients are multiplied by: *factor, on the device, or 1 where there is none.
__device__ inline float factor_or_1(const float* factor) { return factor ? *factor : 1.0f; }

/// call(form) with the form of the weights as a constant.
template <class T, class Call>
void with_form(WeightForm form, Call call) {
  if constexpr (std::is_same_v<T, float>) {  // FP32 weights are their own master copy
    call(std::integral_constant<WeightForm, WeightForm::stored>{});
  } else {
    switch (form) {
      case WeightForm::stored: return call(std::integral_constant<WeightForm, WeightForm::stored>{});
      case WeightForm::master: return call(std::integral_constant<WeightForm, WeightForm::master>{});
      case WeightForm::stochastic:
        if constexpr (std::is_same_v<T, __nv_bfloat16>)  // the only one that is rounded at random
          call(std::integral_constant<WeightForm, WeightForm::stochastic>{});
    }
  }
}

}  // namespace oomlab::nn
