#pragma once
// A picture from a word, in three stages: a text encoder, a denoiser that runs once a step, a decoder. Each is a model of its
// own, and no two of them work at the same time: so their weights need not be on the device together.

#include <fmt/format.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../14_adapters/frozen_store.h"
#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuts.h"
#include "memory/repetition.h"
#include "nn/models/image/autoencoder.h"
#include "nn/models/image/denoiser.h"
#include "nn/models/image/text_encoder.h"
#include "nn/ops/channels.h"
#include "nn/ops/values.h"
#include "sampler.h"

namespace oomlab::image_generation {

using namespace image;

/// What the images show, a word each, and the noise that they begin with.
struct Wishes {
  std::vector<std::string> words;  ///< one an image, of the letters a to z
  std::uint64_t seed = 1;
  std::size_t first_image = 0;  ///< number of the first image, for its noise
};

/// The letters of a word as tokens, a = 1, and 0 behind them. Throws std::invalid_argument for other letters, or too many.
inline std::vector<int> tokens_of(std::string_view word, std::size_t positions) {
  std::vector<int> tokens(positions, 0);
  if (word.size() > positions)
    throw std::invalid_argument(fmt::format("'{}' has more than {} letters", word, positions));
  for (std::size_t i = 0; i < word.size(); ++i) {
    if (word[i] < 'a' || word[i] > 'z') throw std::invalid_argument(fmt::format("'{}' is not of letters a to z", word));
    tokens[i] = word[i] - 'a' + 1;
  }
  return tokens;
}

/// Where the weights of each model come from.
struct Weights {
  std::vector<ReadTensor> text;
  ReadTensor denoiser, decoder;
};

/// What SDXL's denoiser is told of each image: its size, no crop, and its size again.
inline std::array<float, 6> sizes_of_image(const PipelineSpec& spec, const Run& run) {
  const auto side = static_cast<float>(run.size ? run.size : spec.size);
  return {side, side, 0, 0, side, side};
}

/// The three stages, as plan/image/walk.h lists their allocations. T is what weights and activations are stored as.
template <class T>
class Pipeline {
 public:
  /// Loads all models. Throws as WeightStore().
  Pipeline(Context& context, const PipelineSpec& spec, const Run& run, const Weights& weights)
      : context_(context), spec_(spec), run_(run) {
    for (std::size_t i = 0; i < spec.text.size(); ++i)
      text_.push_back(std::make_unique<TextEncoder<T>>(context, spec.text[i], run.residency, weights.text[i]));
    denoiser_.emplace(context, *spec.unet(), run.residency, weights.denoiser,
                      adapters::frozen_stores<T>(format_of_bits(run.denoiser_bits)));
    decoder_.emplace(context, spec.autoencoder, run.residency, weights.decoder);
  }

  /// Images [batch, size, size, image_channels] from −1 to 1, and beyond by what the decoder misses: a new buffer of
  /// activations. Throws OutOfMemory: nothing stays allocated but the weights.
  DeviceBuffer<T> generate(const Wishes& wishes) {
    DeviceBuffer<T> latents = denoise(wishes, encode(wishes));
    const auto turn = decoder_->weights().stage();
    return decode<T>(context_, *decoder_, run_, std::move(latents), latent_size());
  }
  Denoiser<T>& denoiser() noexcept { return *denoiser_; }

 private:
  std::size_t texts() const { return spec_.is_guided() ? 2 * run_.batch : run_.batch; }
  nn::InputSize latent_size() const {
    const std::size_t side = (run_.size ? run_.size : spec_.size) / spec_.autoencoder.factor();
    return {side, side};
  }

  // Of all texts, of a guided pipeline those of no text first.
  using Encoded = typename TextEncoder<T>::Output;
  Encoded encode(const Wishes& wishes) {
    std::vector<Encoded> encoded;
    for (const auto& encoder : text_) {
      const auto turn = encoder->weights().stage();
      const std::size_t positions = encoder->spec().positions;
      DeviceBuffer<int> tokens = context_.buffer<int>(checked_product(texts(), positions), Category::data, "tokens");
      std::vector<int> all((texts() - run_.batch) * positions, 0);
      for (std::size_t i = 0; i < run_.batch; ++i) {
        const std::vector<int> word = tokens_of(wishes.words[i], positions);
        all.insert(all.end(), word.begin(), word.end());
      }
      upload(tokens, all);
      encoded.push_back(encoder->forward(context_, tokens.data(), texts(), form()));
    }
    if (encoded.size() == 1) return std::move(encoded.front());
    // Two encoders' rows side by side, and the pooled rows of the last one.
    Encoded both{
        context_.buffer<T>(checked_product(checked_product(texts(), spec_.context_tokens()), spec_.denoiser_context()),
                           Category::activations, "rows of the texts"),
        std::move(encoded.back().pooled)};
    nn::concatenate_channels<T>(context_, encoded[0].rows.data(), encoded[1].rows.data(), both.rows.data(),
                                texts() * spec_.context_tokens(), spec_.text[0].width, spec_.text[1].width);
    return both;
  }

  DeviceBuffer<T> denoise(const Wishes& wishes, Encoded text) {
    const nn::InputSize size = latent_size();
    const std::size_t image = checked_product(checked_product(size.height, size.width), spec_.unet()->in_channels);
    const std::size_t count = checked_product(run_.batch, image);
    DeviceBuffer<T> latents = context_.buffer<T>(count, Category::activations, "latents");
    upload_noise(wishes, latents, image);
    const auto turn = denoiser_->weights().stage();
    const bool doubled = spec_.is_guided() && run_.guidance_passes == 1;
    DeviceBuffer<float> timesteps = context_.buffer<float>(doubled ? texts() : run_.batch, Category::data, "timesteps");
    const DeviceBuffer<float> numbers = sizes_of_images(timesteps.size());
    // The denoiser's prediction for `from` and the texts behind it.
    const auto predict = [&](const T* x, std::size_t from) {
      const std::size_t rows = spec_.context_tokens(), width = spec_.denoiser_context();
      const T* const pooled = text.pooled ? text.pooled.data() + from * spec_.text.back().projection : nullptr;
      return denoiser_->forward(context_, x, timesteps.data(), {text.rows.data() + from * rows * width, rows, width},
                                timesteps.size(), size, form(), {pooled, numbers.data()});
    };
    const std::vector<SamplerStep> steps = ddim_steps(run_.steps ? run_.steps : spec_.steps, spec_.autoencoder.scaling);
    for (Repetition repetition(context_, steps.size()); repetition.next();) {
      const SamplerStep& step = steps[repetition.number()];
      nn::fill(context_, timesteps.data(), timesteps.size(), step.timestep);
      if (doubled) {
        DeviceBuffer<T> twice = context_.buffer<T>(2 * count, Category::activations, "latents twice");
        for (const std::size_t half : {std::size_t(0), count})
          copy(context_, latents.data(), twice.data() + half, count);
        const DeviceBuffer<T> noise = predict(twice.data(), 0);
        twice.reset();
        ddim_step<T>(context_, latents.data(), noise.data() + count, noise.data(), count, spec_.guidance, step);
      } else if (spec_.is_guided()) {
        const DeviceBuffer<T> without = predict(latents.data(), 0);
        const DeviceBuffer<T> with = predict(latents.data(), run_.batch);
        ddim_step<T>(context_, latents.data(), with.data(), without.data(), count, spec_.guidance, step);
      } else {
        const DeviceBuffer<T> noise = predict(latents.data(), 0);
        ddim_step<T>(context_, latents.data(), noise.data(), nullptr, count, 1, step);
      }
    }
    return latents;
  }

  // Empty for others than SDXL.
  DeviceBuffer<float> sizes_of_images(std::size_t images) {
    if (spec_.unet()->added_time == 0) return {};
    const std::array<float, 6> of_image = sizes_of_image(spec_, run_);
    DeviceBuffer<float> numbers = context_.buffer<float>(images * of_image.size(), Category::data, "sizes of images");
    std::vector<float> all;
    for (std::size_t i = 0; i < images; ++i) all.insert(all.end(), of_image.begin(), of_image.end());
    upload(numbers, all);
    return numbers;
  }
  void upload_noise(const Wishes& wishes, DeviceBuffer<T>& latents, std::size_t image) {
    if (planning()) return;
    std::vector<T> noise;
    for (std::size_t i = 0; i < run_.batch; ++i)
      for (const float value : first_noise(wishes.seed, wishes.first_image + i, image))
        noise.push_back(static_cast<T>(value));
    upload(latents, noise);
  }
  template <class V>
  void upload(DeviceBuffer<V>& to, const std::vector<V>& from) {
    if (planning()) return;
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyHostToDevice, context_.stream()));
    context_.synchronize();  // before `from` is gone
  }
  Form form() const { return form_of(run_); }

  Context& context_;
  const PipelineSpec& spec_;
  Run run_;
  std::vector<std::unique_ptr<TextEncoder<T>>> text_;
  std::optional<Denoiser<T>> denoiser_;
  std::optional<Decoder<T>> decoder_;
};

}  // namespace oomlab::image_generation
