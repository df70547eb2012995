#pragma once
// What the chapters on images have in common: the images, and training steps of a multilayer perceptron on them.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/device_dataset.h"
#include "harness/chapter.h"
#include "memory/context.h"
#include "nn/models/mlp.h"
#include "nn/optimizer/optimizer.h"
#include "train/options.h"

namespace oomlab::train {

inline constexpr std::uint64_t kImageSeed = 1;

/// The digits that come with the course, or the IDX files of --data. Throws data::DataError, and UsageError when the
/// model has too few classes for the labels.
inline data::Dataset load_images(const Config& config, const std::string& model, std::size_t classes) {
  const std::optional<std::string> folder = config.options.find(kData);
  data::Dataset images = folder ? data::read_idx_folder(*folder) : data::digits();
  if (classes < images.classes)
    throw UsageError(fmt::format("model '{}' has {} classes, but the labels of {} need {}", model, classes, images.name,
                                 images.classes));
  return images;
}
/// The same for a perceptron.
inline data::Dataset load_images(const Config& config, const nn::MlpSpec& spec) {
  return load_images(config, spec.name, spec.classes());
}

/// A batch of pictures on the device, numbers first, first + 1, …, as `view` says (phase "batch").
inline nn::Batch make_images(Context& context, const data::DeviceDataset& images, std::size_t first, std::size_t batch,
                             const data::View& view, std::size_t channels) {
  const Phase phase(context.ledger(), "batch");
  nn::Batch next =
      nn::make_batch(context, batch, checked_product(checked_product(view.window_height, view.window_width), channels));
  images.batch(context, first, batch, view, channels, next.input.data(), next.labels.data());
  return next;
}

// A layer adds up as many changes of its weights as it has inputs, so the widest layer decides how large a step may be:
// with a rate for narrow models, the loss of `mlp`, 8,192 wide, rises from 2.5 to 18 in the first step.
inline float rate_for(const nn::MlpSpec& spec, float most, float for_width_one) {
  return std::min(most, for_width_one / static_cast<float>(std::ranges::max(spec.widths)));
}
/// Settings with that rate.
inline nn::OptimizerSettings optimizer_settings(const nn::MlpSpec& spec) {
  return {.adamw = {.lr = rate_for(spec, 1e-3f, 0.25f)}, .sgd = {.lr = rate_for(spec, 0.05f, 16)}};
}

/// An optimizer of all the model's parameters. Throws OutOfMemory.
inline nn::Optimizer<float> make_optimizer(Context& context, nn::Mlp& model, nn::UpdateRule rule) {
  return {context, model.parameters(), {rule}, optimizer_settings(model.spec())};
}

/// Training: resident are the dataset, parameters, gradients and optimizer state; a step adds a batch and activations.
class ImageTraining final : public Workload {
 public:
  ImageTraining(Context& context, const data::Dataset& dataset, const nn::MlpSpec& spec, nn::UpdateRule kind,
                std::size_t batch)
      : context_(context),
        images_(context, dataset),
        model_(context, spec, kImageSeed, /*with_gradients=*/true),
        optimizer_(make_optimizer(context, model_, kind)),
        batch_(batch) {}

  void step() override {
    model_.train_step(context_, next_batch(batch_), optimizer_);
    first_ += batch_;
  }
  /// Forward and backward on a batch of another size, no update: what a batch finder tries.
  void try_batch(std::size_t batch) { model_.forward_backward(context_, next_batch(batch)); }

  std::size_t samples_per_step() const override { return batch_; }
  double figure() override { return model_.loss(context_); }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

  /// Peak allocated bytes by category, in closed form.
  static ByCategory predicted(const data::Dataset& dataset, const nn::MlpSpec& spec, nn::UpdateRule kind,
                              std::size_t batch) {
    ByCategory bytes = nn::predict_training(spec, batch, kind).at_peak;
    bytes[Category::data] += data::device_bytes(dataset);
    return bytes;
  }

 private:
  nn::Batch next_batch(std::size_t batch) {
    const Phase phase(context_.ledger(), "batch");
    nn::Batch next = nn::make_batch(context_, batch, model_.spec().inputs());
    images_.batch(context_, first_, batch, model_.spec().inputs(), next.input.data(), next.labels.data());
    return next;
  }

  Context& context_;
  data::DeviceDataset images_;
  nn::Mlp model_;
  nn::Optimizer<float> optimizer_;
  std::size_t batch_, first_ = 0;
};

}  // namespace oomlab::train
