#pragma once
// AdamW's rule on the CPU, for numbers in host memory: the bits of Optimizer's kernels (adamw_rule.h).

#include <cuda_bf16.h>

#include <cstddef>

#include "nn/optimizer/adamw_rule.h"

namespace oomlab::nn {

/// Moments and weights of some numbers, in FP32.
struct ProcessorState {
  float *weight, *first, *second;
};
/// One update of `count` numbers: reads `from` and the gradients, writes `to` and the weights as T. `to` may be `from`.
void processor_adamw(const AdamWFactors& factors, const float* gradient, const ProcessorState& from,
                     const ProcessorState& to, float* weights, std::size_t count);
void processor_adamw(const AdamWFactors& factors, const __nv_bfloat16* gradient, const ProcessorState& from,
                     const ProcessorState& to, __nv_bfloat16* weights, std::size_t count);

}  // namespace oomlab::nn
