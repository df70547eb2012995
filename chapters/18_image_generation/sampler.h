#pragma once
// From noise to latents: the steps of DDIM (Song et al., 2021), with eta 0, and guidance away from the prediction for no
// text (Ho and Salimans, 2022).

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <stdexcept>
#include <vector>

#include "nn/ops/hash.h"
#include "nn/ops/kernel.h"

namespace oomlab::image_generation {

/// Steps of noise that a denoiser is trained on, and the share of the image that is left after each: what Stable
/// Diffusion's models and this course's are trained with ("scaled_linear" betas).
inline constexpr std::size_t kNoiseSteps = 1000;
inline std::vector<double> alpha_bars() {
  const double first = std::sqrt(0.00085), last = std::sqrt(0.012);
  std::vector<double> bars(kNoiseSteps);
  double product = 1;
  for (std::size_t t = 0; t < kNoiseSteps; ++t) {
    const double root = first + double(t) * (last - first) / double(kNoiseSteps - 1);
    bars[t] = product *= 1 - root * root;
  }
  return bars;
}

/// A step of the sampler: the denoiser is asked about `timestep`, and x becomes keep · x + add · its prediction.
struct SamplerStep {
  float timestep;
  double keep, add;
};
/// Timesteps are spaced "trailing", 999 first (Lin et al., 2024). The last step also divides x by the autoencoder's
/// `scaling`: then it is the decoder's input. Throws std::invalid_argument for no steps, or more than there are of noise.
inline std::vector<SamplerStep> ddim_steps(std::size_t steps, double scaling) {
  if (steps == 0 || steps > kNoiseSteps) throw std::invalid_argument("a sampler takes 1 to 1000 steps");
  const std::vector<double> bars = alpha_bars();
  const auto timestep = [&](std::size_t i) {  // of step i, to the nearest, halves to the even one as Python has it
    return static_cast<std::size_t>(std::nearbyint(double(kNoiseSteps) - double(i * kNoiseSteps) / double(steps))) - 1;
  };
  std::vector<SamplerStep> all(steps);
  for (std::size_t i = 0; i < steps; ++i) {
    const double bar = bars[timestep(i)], next = i + 1 < steps ? bars[timestep(i + 1)] : 1;
    const double keep = std::sqrt(next / bar), add = std::sqrt(1 - next) - keep * std::sqrt(1 - bar);
    const double last = i + 1 < steps ? 1 : 1 / scaling;
    all[i] = {static_cast<float>(timestep(i)), keep * last, add * last};
  }
  return all;
}

/// Normal numbers of one image (Box and Muller, 1958) from a hash of the seed, the image's number and the element's: the
/// same on every machine. common/data/digit_images/README.md has the formula.
inline std::vector<float> first_noise(std::uint64_t seed, std::size_t image, std::size_t count) {
  const std::uint64_t key = nn::hash_key(seed, image);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double u = nn::uniform(key, 2 * i), v = nn::uniform(key, 2 * i + 1);
    values[i] = static_cast<float>(std::sqrt(-2 * std::log((1 - u) / 2)) * std::cos(std::numbers::pi * v));
  }
  return values;
}

namespace detail {
template <class T, bool kGuided>
__global__ void ddim_kernel(T* __restrict__ x, const T* __restrict__ named, const T* __restrict__ without,
                            std::size_t count, float guidance, float keep, float add, bool packs) {
  nn::for_packs<T>(nn::GridRange{}, count, packs, [&](auto v, std::size_t i) {
    using V = decltype(v);
    v = nn::load<V>(x, i);
    const V with = nn::load<V>(named, i);
    const V none = kGuided ? nn::load<V>(without, i) : with;
    nn::each_lane<V>([&](std::size_t k) {
      const float u = static_cast<float>(none[k]);
      const float noise = kGuided ? fmaf(guidance, static_cast<float>(with[k]) - u, u) : u;
      v[k] = static_cast<T>(fmaf(keep, static_cast<float>(v[k]), add * noise));
    });
    nn::store(x, i, v);
  });
}
}  // namespace detail

/// x[count] = keep · x + add · (without + guidance · (named − without)) in place, in FP32. `without` null: no guidance,
/// the prediction is `named`. Queued on the context's stream; nothing is allocated.
template <class T>
void ddim_step(Context& context, T* x, const T* named, const T* without, std::size_t count, double guidance,
               const SamplerStep& step) {
  const bool packs = nn::aligned_for_packs(x, named, without);
  const auto kernel = without ? detail::ddim_kernel<T, true> : detail::ddim_kernel<T, false>;
  launch(kernel, shape_for_items(count / Pack<T>::size), context.stream(), x, named, without, count,
         static_cast<float>(guidance), static_cast<float>(step.keep), static_cast<float>(step.add), packs);
}

}  // namespace oomlab::image_generation
