#pragma once
// Inference beside training: no gradients, no optimizer state, and each activation is freed as soon as the next one is
// there.

#include <cstddef>
#include <cstdint>

#include "train/image_training.h"

namespace oomlab::anatomy {

class Inference final : public Workload {
 public:
  Inference(Context& context, const data::Dataset& dataset, const nn::MlpSpec& spec, std::size_t batch)
      : context_(context),
        images_(context, dataset),
        model_(context, spec, train::kImageSeed, /*with_gradients=*/false),
        batch_(batch) {}

  void step() override {
    const std::size_t width = model_.spec().inputs();
    auto input = context_.buffer<float>(batch_ * width, Category::activations, "input");
    images_.batch(context_, first_, batch_, width, input.data(), nullptr);
    logits_.reset();
    logits_ = model_.forward(context_, std::move(input), batch_);
    logits_.reset();
    first_ += batch_;
  }
  std::size_t samples_per_step() const override { return batch_; }
  double figure() override { return 0; }  // there is no loss: nothing is learned
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

  /// Peak allocated bytes by category, in closed form.
  static ByCategory predicted(const data::Dataset& dataset, const nn::MlpSpec& spec, std::size_t batch) {
    ByCategory bytes = nn::predict_inference(spec, batch).at_peak;
    bytes[Category::data] += data::device_bytes(dataset);
    return bytes;
  }

 private:
  Context& context_;
  data::DeviceDataset images_;
  nn::Mlp model_;
  DeviceBuffer<float> logits_;
  std::size_t batch_, first_ = 0;
};

}  // namespace oomlab::anatomy
