#pragma once
// Where diffusers' modules hold more than this course's (plan/image): read in its sources, version 0.36, not measured.

#include "plan/image/run.h"

namespace oomlab::fit {

/// AutoencoderKL's decode() at its fullest, bytes without the weights: of `images` latents [latents] in `dtype`, one after
/// the other where `sliced`, and in tiles of `tile` latent pixels where an image has more (0: never). The workspace is
/// assumed: cuDNN's copies of a convolution's input and output. With it what others measured (docs/fit_public.md) agrees.
ByCategory decode_bytes(const image::AutoencoderSpec& spec, DType dtype, std::uint64_t images, nn::InputSize latents,
                        bool sliced, std::uint64_t tile);

/// What AttnProcessor, without scaled_dot_product_attention, holds beyond one matrix of all scores: another one.
std::uint64_t scores_bytes(const image::UNetSpec& spec, DType dtype, std::uint64_t images, nn::InputSize latents);

}  // namespace oomlab::fit
