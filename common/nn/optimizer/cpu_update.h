#pragma once
// An optimizer's rule on the CPU, for numbers in host memory: the bits of Optimizer's kernels (adamw_rule.h,
// dynamic_code.h). Element-wise rules only: AdamW, AdamW with moments of 8 bits, SGD.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "nn/optimizer/adamw_rule.h"
#include "plan/optimizer_state.h"

namespace oomlab::nn {

/// A tensor in host memory. What a rule or a form of weights does not have is null.
template <class T>
struct TensorOnHost {
  const T* gradient;
  T* weights;     ///< written; read where there is no master copy
  float* master;  ///< read and written instead
  float* first;   ///< moments
  float* second;
  std::uint8_t* codes[2];      ///< or moments of 8 bits,
  float* absmax[2];            ///< of which each kCodeBlock have one of these
  std::uint32_t rounding_key;  ///< of stochastic rounding
};

/// What is the same for all tensors of a step.
struct CpuStep {
  OptimizerForm form;
  AdamWFactors adamw;
  float sgd_lr;
  float factor;  ///< of gradients: 1, or 1 / loss scale
};

/// One update, on the calling thread, of elements begin … end − 1 of a tensor; `begin` is a multiple of kCodeBlock. T
/// is float, __half or __nv_bfloat16; stochastic rounding is for the last.
void cpu_update(const CpuStep& step, const TensorOnHost<float>& tensor, std::size_t begin, std::size_t end);
void cpu_update(const CpuStep& step, const TensorOnHost<__half>& tensor, std::size_t begin, std::size_t end);
void cpu_update(const CpuStep& step, const TensorOnHost<__nv_bfloat16>& tensor, std::size_t begin, std::size_t end);

}  // namespace oomlab::nn
