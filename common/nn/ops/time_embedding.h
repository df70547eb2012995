#pragma once
// How a denoiser is told how noisy its input is.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

/// y[batch, width]: of each timestep t (device, [batch]; 0 ≤ t < 2^20) cos(t · f), then sin(t · f), of the frequencies
/// f = 10000^(−k / half), k = 0…half − 1, half = width / 2; of an odd width the last column is 0. The sinusoids of Vaswani
/// et al. (2017) as Ho et al. (2020) use them: diffusers' get_timestep_embedding() with flip_sin_to_cos=True and
/// downscale_freq_shift=0.
template <class T>
void time_embedding(Context& context, const float* timesteps, T* y, std::size_t batch, std::size_t width);

}  // namespace oomlab::nn
