#pragma once
// What the kernels of group norm share: which group a column belongs to, and what goes into the activation.

#include "nn/ops/activation_math.h"
#include "nn/ops/group_norm.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

template <class Work>
void with_norm_activation(Activation activation, Work work) {
  with_activation<Activation::none, Activation::silu>("behind a group norm", activation, work);
}

// Throws what group_norm_forward() throws.
void check_group_norm(const GroupNormShape& shape);

// to[k] = of[the group of column first + k], groups of `of_group` columns.
template <std::size_t lanes>
__device__ void spread(float (&to)[lanes], const float* of, std::size_t first, unsigned of_group) {
  std::size_t group = first / of_group, column = first - group * of_group;
  for (std::size_t k = 0; k < lanes; ++k) {
    to[k] = of[group];
    if (++column == of_group) {
      column = 0;
      ++group;
    }
  }
}

// What goes into the activation. One expression, so that all passes see the same.
__device__ inline float scaled(float normal, float gamma, float beta) { return fmaf(normal, gamma, beta); }
__device__ inline float normal_of(float x, float mean, float rstd) { return (x - mean) * rstd; }

}  // namespace oomlab::nn
