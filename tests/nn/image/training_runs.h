#pragma once
// A denoiser whose adapters are trained, and all that a step reads.

#include "image_runs.h"
#include "nn/models/image/denoiser_training.h"
#include "nn/ops/values.h"

namespace oomlab::test {

inline constexpr LoraForm kLora{.rank = 3, .alpha = 6};
inline constexpr std::uint64_t kSeed = 5;

/// A denoiser, its adapters, and a batch, which all live as long as this.
template <class T>
struct Trained {
  Trained(Context& context, const PipelineSpec& spec, const Run& run, nn::InputSize size)
      : form(form_of(run)),
        model(context, *spec.unet(), run.residency, random_weights(),
              adapters::frozen_stores<T>(format_of_bits(run.denoiser_bits))),
        training(context, model, kLora, kSeed, {}),
        inputs(context, spec, run.batch, size, Category::data) {
    const UNetSpec& unet = *spec.unet();
    noise = upload<T>(context, run.batch * size.height * size.width * unet.in_channels, "noise", Category::data);
  }
  NoisyBatch<T> batch() const {
    return {inputs.latents.data(),
            noise.data(),
            inputs.timesteps.data(),
            {inputs.text.data(), inputs.tokens, inputs.width},
            {inputs.pooled.data(), inputs.numbers.data()},
            inputs.batch,
            inputs.latent_size};
  }
  // B is 0 at first, and then A has no gradient.
  void pretend_trained(Context& context) {
    std::uint64_t stream = 100;
    for (const auto& tensor : training.adapters().parameters())
      nn::fill_uniform(context, tensor.value, tensor.count, 0.2f, kSeed, ++stream);
  }
  void step(Context& context) { training.step(context, batch(), form); }
  std::uint64_t fingerprint(Context& context) {
    std::uint64_t hash = nn::kFingerprintStart;
    for (const auto& tensor : training.adapters().parameters())
      hash = nn::fingerprint(context, tensor.value, tensor.count * sizeof(T), hash);
    return hash;
  }

  Form form;
  Denoiser<T> model;
  DenoiserTraining<T> training;
  DenoiserInputs<T> inputs;
  DeviceBuffer<T> noise;
};

/// A step of it. `flops`, where not null, gets its operations.
inline Passed trained(const PipelineSpec& spec, const Run& run, nn::InputSize size, double* flops = nullptr) {
  return measured_as(run.dtype, [&]<class T>(Context& context, T) {
    Trained<T> trained(context, spec, run, size);
    const std::uint64_t before = context.flops();
    trained.step(context);
    if (flops) *flops = static_cast<double>(context.flops() - before);
    return std::vector<float>();
  });
}

}  // namespace oomlab::test
