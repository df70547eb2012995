#pragma once
// A LoRA on the denoiser: it learns to draw digits black on white. Nothing but the adapters on its attention is trained
// (nn/models/image/denoiser_training.h), so there are no gradients and no moments of its own weights; but its activations
// wait for the backward pass, and those are what fills the card.
//
// Text encoder and autoencoder do not train. So their work is done once, in front of the first step, and kept on the host:
// latents of the images, and rows of their names. While the denoiser trains, they are gone.

#include <array>
#include <memory>
#include <vector>

#include "cuda/dtype_of.h"
#include "data/dataset.h"
#include "digits.h"
#include "harness/chapter.h"
#include "nn/models/image/denoiser_training.h"
#include "nn/ops/upsample.h"

namespace oomlab::image_generation {

/// As in diffusers' train_text_to_image_lora.py: rank 4, and what the adapters add is not scaled.
inline constexpr LoraForm kLora{.rank = 4, .alpha = 4};
/// More than the script's 1e-4: a denoiser this small needs larger steps.
inline constexpr nn::AdamWSettings kLoraAdamW{.lr = 3e-3f};
inline constexpr std::uint64_t kLoraSeed = 18;

/// What is learnt, on the host: of each image its latents, and the rows of its name. Nothing on the device reads it.
struct TrainingSet {
  std::size_t images = 0;
  std::vector<float> latents{};  ///< [images, height, width, channels]
  std::vector<float> rows{};     ///< [images, tokens, width]
  std::vector<float> pooled{};   ///< [images, projection], of SDXL
};

/// To the device and back, in the order of the stream; both wait for it.
template <class V, class T>
void send(Context& context, DeviceBuffer<T>& to, const std::vector<V>& values) {
  const std::vector<T> converted(values.begin(), values.end());
  copy(context, converted.data(), to.data(), to.size());
  context.synchronize();  // before `converted` is gone
}
template <class T>
std::vector<float> received(Context& context, const DeviceBuffer<T>& from) {
  std::vector<T> values(from.size());
  copy(context, from.data(), values.data(), values.size());
  context.synchronize();
  return {values.begin(), values.end()};
}

/// The course's digits, as wishes_of() names them: −1 is ink and 1 paper, which is the other way round than what the denoiser
/// was trained on. [images, 8, 8]
inline std::vector<float> black_on_white(std::size_t images) {
  const data::Dataset digits = data::digits();
  std::vector<float> pixels;
  std::size_t from = 0;
  for (std::size_t image = 0; image < images; ++image) {
    while (digits.labels[from] != image % kDigits.size()) from = (from + 1) % digits.count;
    for (std::size_t i = 0; i < digits.pixels(); ++i) {
      const float ink = float(digits.images[from * digits.pixels() + i]) / float(digits.white);
      pixels.push_back(1 - 2 * ink);
    }
    from = (from + 1) % digits.count;
  }
  return pixels;
}

/// Digits black on white, with `side` pixels on a side, a multiple of 8. Throws OutOfMemory.
inline TrainingSet inverted_digits(Context& context, std::size_t images, std::size_t side) {
  const PipelineSpec& spec = pipeline_named("digits");
  const std::vector<float> small = black_on_white(images);
  TrainingSet set{.images = images};
  {
    Encoder<float> encoder(context, spec.autoencoder, Residency::all, tensors_from(shipped("autoencoder")));
    DeviceBuffer<float> digits = context.buffer<float>(small.size(), Category::data, "digits");
    DeviceBuffer<float> large = context.buffer<float>(images * side * side, Category::activations, "images");
    send(context, digits, small);
    nn::upsample_forward<float>(context, digits.data(), large.data(), images, 8, 8, 1, side / 8);
    const DeviceBuffer<float> moments = encoder.forward(context, std::move(large), images, {side, side}, {});
    // Of each latent pixel the means, and then the logarithms of the variances, which are not needed.
    const std::vector<float> values = received(context, moments);
    const std::size_t channels = spec.autoencoder.latent_channels;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (i % (2 * channels) < channels)
        set.latents.push_back(float(spec.autoencoder.scaling * (values[i] - spec.autoencoder.shift)));
  }
  TextEncoder<float> encoder(context, spec.text.front(), Residency::all, tensors_from(shipped("text_encoder")));
  std::vector<int> letters;
  for (const std::string& word : wishes_of(images, 0).words)
    for (const int token : tokens_of(word, spec.text.front().positions)) letters.push_back(token);
  DeviceBuffer<int> tokens = context.buffer<int>(letters.size(), Category::data, "tokens");
  send(context, tokens, letters);
  set.rows = received(context, encoder.forward(context, tokens.data(), images, {}).rows);
  return set;
}

/// Noise, for pipelines whose weights are noise, too.
inline TrainingSet random_set(const PipelineSpec& spec, std::size_t images, nn::InputSize latents) {
  const UNetSpec& unet = *spec.unet();
  TrainingSet set{.images = images};
  set.latents = first_noise(1, 0, images * latents.height * latents.width * unet.in_channels);
  set.rows = first_noise(2, 0, images * spec.context_tokens() * unet.context);
  if (unet.added_condition) set.pooled = first_noise(3, 0, images * spec.text.back().projection);
  return set;
}

/// Steps of training, each of another batch, other noise and other timesteps.
template <class T>
class LoraTraining final : public Workload {
 public:
  /// Throws OutOfMemory: nothing stays allocated. In plan mode nothing is read of the set.
  LoraTraining(Context& context, const PipelineSpec& spec, const Run& run, std::shared_ptr<const TrainingSet> set,
               const nn::AdamWSettings& adamw = kLoraAdamW)
      : context_(context),
        spec_(spec),
        run_(run),
        set_(std::move(set)),
        size_(latents_of(spec, run)),
        denoiser_(context, *spec.unet(), run.residency, weights_of(spec).denoiser,
                  adapters::frozen_stores<T>(format_of_bits(run.denoiser_bits))),
        training_(context, denoiser_, kLora, kLoraSeed, adamw) {
    const UNetSpec& unet = *spec.unet();
    const auto data = [&](std::size_t width, const char* tag) {
      return context.buffer<T>(checked_product(run.batch, width), Category::data, tag);
    };
    const std::size_t latents = size_.height * size_.width * unet.in_channels;
    noisy_ = data(latents, "noisy latents");
    noise_ = data(latents, "noise");
    timesteps_ = context.buffer<float>(run.batch, Category::data, "timesteps");
    rows_ = data(checked_product(spec.context_tokens(), unet.context), "rows of the texts");
    if (unet.added_condition == 0) return;
    pooled_ = data(spec.text.back().projection, "pooled rows");
    numbers_ = context.buffer<float>(6 * run.batch, Category::data, "sizes of images");
  }

  void step() override {
    if (!planning()) send_batch();
    const TextRows<T> text{rows_.data(), spec_.context_tokens(), spec_.unet()->context};
    const AddedConditions<T> added{pooled_.data(), numbers_.data()};
    const NoisyBatch<T> batch{noisy_.data(), noise_.data(), timesteps_.data(), text, added, run_.batch, size_};
    training_.step(context_, batch, form_of(run_));
    ++steps_;
  }
  std::size_t samples_per_step() const override { return run_.batch; }
  /// The loss of the last batch: the mean square of what the denoiser misses of the noise.
  double figure() override { return training_.loss(context_); }
  /// Of the adapters.
  std::uint64_t fingerprint() override {
    std::uint64_t hash = nn::kFingerprintStart;
    for (const auto& tensor : training_.adapters().parameters())
      hash = nn::fingerprint(context_, tensor.value, tensor.count * sizeof(T), hash);
    return hash;
  }
  LoraAdapters<T>& adapters() { return training_.adapters(); }

 private:
  // Noise is added to latents as the schedule says (Ho et al., 2020): of a late timestep, much.
  void send_batch() {
    const std::vector<double> bars = alpha_bars();
    const std::uint64_t key = nn::hash_key(kLoraSeed, 0);
    std::vector<float> noisy, noise, timesteps, rows, pooled, numbers;
    for (std::size_t i = 0; i < run_.batch; ++i) {
      const std::size_t sample = steps_ * run_.batch + i;
      const std::size_t image = sample % set_->images;
      const double share = (double(nn::uniform(key, sample)) + 1) / 2;  // from 0 to below 1
      const auto timestep = std::size_t(share * double(kNoiseSteps));
      const float keep = float(std::sqrt(bars[timestep])), add = float(std::sqrt(1 - bars[timestep]));
      const std::size_t count = set_->latents.size() / set_->images;
      const std::vector<float> added = first_noise(kLoraSeed, sample, count);
      for (std::size_t k = 0; k < count; ++k) {
        noise.push_back(added[k]);
        noisy.push_back(keep * set_->latents[image * count + k] + add * added[k]);
      }
      timesteps.push_back(float(timestep));
      append(rows, set_->rows, image);
      append(pooled, set_->pooled, image);
      for (const float number : sizes_of_image(spec_, run_)) numbers.push_back(number);
    }
    send(context_, noisy_, noisy);
    send(context_, noise_, noise);
    send(context_, timesteps_, timesteps);
    send(context_, rows_, rows);
    if (pooled_) send(context_, pooled_, pooled);
    if (numbers_) send(context_, numbers_, numbers);
  }
  // What a set has of one image.
  void append(std::vector<float>& to, const std::vector<float>& from, std::size_t image) const {
    const std::size_t count = from.size() / set_->images;
    const auto first = from.begin() + std::ptrdiff_t(image * count);
    to.insert(to.end(), first, first + std::ptrdiff_t(count));
  }

  Context& context_;
  const PipelineSpec& spec_;
  Run run_;
  std::shared_ptr<const TrainingSet> set_;
  nn::InputSize size_;
  Denoiser<T> denoiser_;
  DenoiserTraining<T> training_;
  DeviceBuffer<T> noisy_, noise_, rows_, pooled_;
  DeviceBuffer<float> timesteps_, numbers_;
  std::size_t steps_ = 0;
};

/// Throws as LoraTraining(). The set is made in a context of its own, which is gone when training begins.
inline std::unique_ptr<Workload> make_lora_training(Context& context, const Config& config, const PipelineSpec& spec,
                                                    const Run& run) {
  auto set = std::make_shared<TrainingSet>();
  const nn::InputSize latents = latents_of(spec, run);
  const std::size_t side = latents.height * spec.autoencoder.factor();
  if (!planning() && spec.name != "digits") *set = random_set(spec, run.batch, latents);
  if (!planning() && spec.name == "digits") {
    Ledger ledger;
    with_context(config, kUnlimited, ledger, [&](Context& own) { *set = inverted_digits(own, run.batch, side); });
  }
  return with_type_of<float, __half, __nv_bfloat16>(run.dtype, [&]<class T>(T) -> std::unique_ptr<Workload> {
    return std::make_unique<LoraTraining<T>>(context, spec, run, set);
  });
}

}  // namespace oomlab::image_generation
