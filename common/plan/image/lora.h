#pragma once
// Training a U-Net by low-rank adapters (Hu et al., "LoRA", 2021) on its attention, as diffusers' train_text_to_image_lora.py
// does: every weight is frozen, and beside the matrices to_q, to_k, to_v and to_out.0 of each attention, over the pixels and
// to the text, stand A [r, in] and B [out, r]. The peak of a step is exact to the byte: walk.h has the convention.

#include <cstdint>
#include <string>
#include <vector>

#include "plan/image/run.h"

namespace oomlab::image {

struct LoraForm {
  std::uint64_t rank = 4;                                           ///< r
  float alpha = 4;                                                  ///< a layer adds alpha / r · x Aᵀ Bᵀ
  float scale() const { return alpha / static_cast<float>(rank); }  ///< what it multiplies that with
};

/// A and B of each adapter, "<layer>.lora_A.weight" and "<layer>.lora_B.weight", as peft has them, in the order in which a
/// forward pass needs them. Throws std::invalid_argument for a rank of 0.
std::vector<TensorOf> lora_tensors(const UNetSpec& spec, std::uint64_t rank);
/// Σ r (in + out): what is trained.
std::uint64_t lora_parameters(const UNetSpec& spec, std::uint64_t rank);

/// A training step of the denoiser alone, its weights resident, A and B in the run's number format, their moments, and of 16
/// bits also a copy of A and B, in FP32.
struct TrainingCost {
  PeakBytes peak;            ///< beside the context's cuBLAS workspace
  double multiply_adds = 0;  ///< of a step
};
/// Of run.batch images with latents of this size. Throws std::invalid_argument, with one line, for a pipeline without a U-Net,
/// for weights that are not all resident, and as peaks_of().
TrainingCost cost_of_training(const PipelineSpec& spec, const Run& run, const LoraForm& lora, nn::InputSize latents);

}  // namespace oomlab::image
