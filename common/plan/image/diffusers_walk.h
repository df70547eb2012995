#pragma once
// Forward passes of diffusers' and transformers' modules without gradients, tensor by tensor: what is live, since a
// variable of some frame still names it. Peaks in bytes, beside the weights.

#include "plan/image/diffusers.h"
#include "plan/peak.h"

namespace oomlab::image {

std::uint64_t text_activations(const TextEncoderSpec& spec, std::uint64_t texts, std::uint64_t element_bytes);
/// `images`: of one pass, those for no text among them. `latents`: pixels on a side.
std::uint64_t denoiser_activations(const PipelineSpec& spec, const DiffusersRun& run, std::uint64_t images,
                                   std::uint64_t latents);
/// Categories activations and workspace.
PeakBytes decoder_peak(const PipelineSpec& spec, const DiffusersRun& run, std::uint64_t element_bytes,
                       std::uint64_t latents);
/// Latent pixels on a side of what the decoder makes at once, and how often it runs for all images.
struct DecoderPasses {
  std::uint64_t side, images, count;
};
DecoderPasses decoder_passes(const PipelineSpec& spec, const DiffusersRun& run, std::uint64_t latents);

}  // namespace oomlab::image
