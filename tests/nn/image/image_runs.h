#pragma once
// Whole passes of models that make images, whose ledger and values are then looked at.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "../../../chapters/14_adapters/frozen_store.h"
#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/dtype_of.h"
#include "nn/models/image/autoencoder.h"
#include "nn/models/image/denoiser.h"
#include "nn/models/image/text_encoder.h"

namespace oomlab::test {

using namespace image;

/// Random values, the same for a tensor's name: matrices within ±√(3 / inputs), norms' gammas near 1, other vectors
/// near 0.
inline ReadTensor random_weights() {
  return [](const TensorOf& tensor, std::span<float> values) {
    std::uint64_t state = 1469598103934665603ull;
    for (const char c : tensor.name) state = (state ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    const bool vector = tensor.shape.size() == 1;
    const double inputs = static_cast<double>(tensor.elements() / tensor.shape[0]);
    const auto bound = static_cast<float>(vector ? 0.25 : std::sqrt(3 / inputs));
    const float about = vector && tensor.name.ends_with("weight") ? 1.0f : 0.0f;
    for (float& value : values) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      value = about + bound * (static_cast<float>(state >> 40) / (1 << 23) - 1);
    }
  };
}
inline std::vector<float> random_input(std::size_t count, const char* name) {
  std::vector<float> values(count);
  random_weights()({std::string(name) + ".input", {1, 1, 1, 3}}, values);
  return values;
}

/// What a pass left behind. In plan mode there are no values.
struct Passed {
  ByCategory device;  ///< at the peak, without cuBLAS's workspace
  std::uint64_t peak = 0;
  HostBytes host;
  std::vector<float> values;
};

template <class T>
std::vector<float> values_of(Context& context, const DeviceBuffer<T>& buffer) {
  if (planning()) return {};
  std::vector<T> raw(buffer.size());
  CUDA_CHECK(cudaMemcpyAsync(raw.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
  return {raw.begin(), raw.end()};
}
template <class T>
DeviceBuffer<T> upload(Context& context, std::size_t count, const char* name, Category category) {
  DeviceBuffer<T> buffer = context.buffer<T>(count, category, name);
  if (planning()) return buffer;
  std::vector<T> raw;
  for (const float value : random_input(count, name)) {
    if constexpr (std::is_same_v<T, int>)
      raw.push_back(std::abs(static_cast<int>(value * 1000)) % 27);
    else
      raw.push_back(static_cast<T>(name == std::string("timesteps") ? std::fabs(value) * 999 : value));
  }
  CUDA_CHECK(cudaMemcpyAsync(buffer.data(), raw.data(), buffer.bytes(), cudaMemcpyHostToDevice, context.stream()));
  context.synchronize();
  return buffer;
}

/// pass(context) in a context of its own; what it returns are the values.
template <class Pass>
Passed measured(Pass pass) {
  Passed passed;
  CudaResource resource;
  Ledger ledger;
  {
    Context context(resource, ledger);
    passed.values = pass(context);
    passed.host = context.host_memory().peak();
  }
  passed.device = without_workspace(ledger.peak_by_category());
  passed.peak = ledger.peak_bytes();
  EXPECT_EQ(ledger.live_bytes(), 0u);
  return passed;
}
template <class Pass>
Passed measured_as(DType type, Pass pass) {
  return with_type_of<float, __half, __nv_bfloat16>(
      type, [&](auto value) { return measured([&](Context& context) { return pass(context, value); }); });
}

/// A denoiser and all that it reads.
template <class T>
struct DenoiserInputs {
  DenoiserInputs(Context& context, const PipelineSpec& spec, std::size_t images, nn::InputSize size,
                 Category category = Category::activations)
      : tokens(spec.context_tokens()), width(spec.denoiser_context()), batch(images), latent_size(size) {
    const UNetSpec& unet = *spec.unet();
    latents = upload<T>(context, images * size.height * size.width * unet.in_channels, "latents", category);
    timesteps = upload<float>(context, images, "timesteps", Category::data);
    text = upload<T>(context, images * tokens * width, "text", category);
    if (unet.added_condition == 0) return;
    pooled = upload<T>(context, images * spec.text.back().projection, "pooled", category);
    numbers = upload<float>(context, images * 6, "numbers", Category::data);
  }
  DeviceBuffer<T> pass(Context& context, Denoiser<T>& model, const Form& form) {
    return model.forward(context, latents.data(), timesteps.data(), {text.data(), tokens, width}, batch, latent_size,
                         form, {pooled.data(), numbers.data()});
  }
  std::size_t tokens, width, batch;
  nn::InputSize latent_size;
  DeviceBuffer<T> latents, text, pooled;
  DeviceBuffer<float> timesteps, numbers;
};

inline Passed denoised(const PipelineSpec& spec, const Run& run, std::size_t images, nn::InputSize size) {
  return measured_as(run.dtype, [&]<class T>(Context& context, T) {
    Denoiser<T> model(context, *spec.unet(), run.residency, random_weights(),
                      adapters::frozen_stores<T>(format_of_bits(run.denoiser_bits)));
    const auto turn = model.weights().stage();
    DenoiserInputs<T> inputs(context, spec, images, size);
    return values_of(context, inputs.pass(context, model, form_of(run)));
  });
}
inline Passed encoded(const TextEncoderSpec& spec, const Run& run, std::size_t texts) {
  return measured_as(run.dtype, [&]<class T>(Context& context, T) {
    TextEncoder<T> model(context, spec, run.residency, random_weights());
    const auto turn = model.weights().stage();
    const auto tokens = upload<int>(context, texts * spec.positions, "tokens", Category::data);
    const auto out = model.forward(context, tokens.data(), texts, form_of(run));
    std::vector<float> values = values_of(context, out.rows);
    std::ranges::copy(values_of(context, out.pooled), std::back_inserter(values));
    return values;
  });
}
inline Passed decoded(const AutoencoderSpec& spec, const Run& run, std::size_t images, nn::InputSize size) {
  return measured_as(run.dtype, [&]<class T>(Context& context, T) {
    Decoder<T> model(context, spec, run.residency, random_weights());
    const auto turn = model.weights().stage();
    auto latents =
        upload<T>(context, images * size.height * size.width * spec.latent_channels, "latents", Category::activations);
    return values_of(context, model.forward(context, std::move(latents), images, size, form_of(run)));
  });
}

/// Three levels, no attention at the last one, transformers of two layers, conditions beside the text: what digits has not.
inline PipelineSpec three_levels() {
  PipelineSpec spec = pipeline_named("digits");
  spec.name = "three levels";
  spec.text.front() = {.name = "text_encoder",
                       .vocabulary = 27,
                       .positions = 7,
                       .width = 24,
                       .layers = 3,
                       .heads = 3,
                       .mlp = 100,
                       .activation = TextActivation::gelu,
                       .projection = 10};
  spec.denoiser = UNetSpec{.channels = {16, 24, 40},
                           .transformers = {0, 2, 0},
                           .heads = {1, 3, 4},
                           .layers_per_block = 2,
                           .context = 24,
                           .in_channels = 4,
                           .out_channels = 4,
                           .groups = 8,
                           .linear_projection = true,
                           .mid_transformers = 1,
                           .added_condition = 34,
                           .added_time = 4};
  spec.autoencoder = {.image_channels = 3,
                      .channels = {8, 16},
                      .layers_per_block = 2,
                      .latent_channels = 4,
                      .groups = 4,
                      .quant_convolutions = false};
  return spec;
}

inline std::string shown(const Run& run) {
  return std::string(name_of(run.residency)) + ", " + name_of(run.attention) + ", " + name_of(run.dtype) + ", " +
         nn::name_of(run.convolution) + ", " + std::to_string(run.denoiser_bits) + " bits";
}

inline constexpr Residency kResidencies[] = {Residency::all, Residency::model, Residency::layer};
inline constexpr PixelAttention kAttentions[] = {PixelAttention::textbook, PixelAttention::tiled,
                                                 PixelAttention::fused};

inline void expect_equal(const ByCategory& measured, const ByCategory& predicted, const std::string& what) {
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    EXPECT_EQ(measured.bytes[c], predicted.bytes[c]) << name_of(static_cast<Category>(c)) << ", " << what;
}

}  // namespace oomlab::test
