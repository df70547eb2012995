#pragma once
// Forward passes of diffusers' and transformers' modules without gradients, tensor by tensor: what is live, since a
// variable of some frame still names it. Peaks in bytes, beside the weights.

#include "plan/image/diffusers.h"

namespace oomlab::image {

std::uint64_t text_activations(const TextEncoderSpec& spec, std::uint64_t texts, std::uint64_t element_bytes);
/// `latents`: pixels on a side.
std::uint64_t denoiser_activations(const PipelineSpec& spec, const DiffusersRun& run, std::uint64_t images,
                                   std::uint64_t latents);
std::uint64_t decoder_activations(const PipelineSpec& spec, const DiffusersRun& run, std::uint64_t element_bytes,
                                  std::uint64_t latents);

}  // namespace oomlab::image
