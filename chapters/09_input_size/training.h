#pragma once
// What the variants run: training steps of a residual network on images of some size, and inference, whole or by tiles.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "data/device_dataset.h"
#include "harness/chapter.h"
#include "tiles.h"
#include "train/image_training.h"

namespace oomlab::input_size {

inline constexpr auto kOptimizer = nn::UpdateRule::momentum;
inline constexpr nn::OptimizerSettings kSettings{.sgd = {.lr = 0.005f, .momentum = 0.9f}};

/// One way of a training step.
struct Way {
  std::string name;
  nn::NetworkSpec spec;
  data::View view;  ///< what it sees of each picture
  nn::NetworkForm form{};

  nn::InputSize size() const { return {view.window_height, view.window_width}; }
};

class ViewTraining final : public Workload {
 public:
  ViewTraining(Context& context, const data::Dataset& dataset, const Way& way, std::size_t batch)
      : context_(context),
        way_(way),
        images_(context, dataset),
        model_(context, way.spec, train::kImageSeed, /*with_gradients=*/true),
        optimizer_(context, model_.parameters(), {kOptimizer}, kSettings),
        batch_(batch) {}

  void step() override {
    model_.train_step(context_, train::make_images(context_, images_, first_, batch_, way_.view, way_.spec.in_channels),
                      way_.size(), optimizer_, way_.form);
    first_ += batch_;
  }
  std::size_t samples_per_step() const override { return batch_; }
  double figure() override { return model_.loss(context_); }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

  static ByCategory predicted(const data::Dataset& dataset, const Way& way, std::size_t batch) {
    ByCategory bytes = nn::predict_training(way.spec, batch, way.size(), kOptimizer, way.form).at_peak;
    bytes[Category::data] += data::device_bytes(dataset);
    return bytes;
  }

 private:
  Context& context_;
  Way way_;
  data::DeviceDataset images_;
  nn::Network model_;
  nn::Optimizer<float> optimizer_;
  std::size_t batch_, first_ = 0;
};

/// Inference on pictures of one size, whole (tiles 0) or by tiles. Writes what it computed to `logits`, but in plan
/// mode.
class Inference final : public Workload {
 public:
  Inference(Context& context, const data::Dataset& dataset, const nn::NetworkSpec& spec, std::size_t side,
            std::size_t tiles, const nn::NetworkForm& form, std::size_t batch, std::vector<float>& logits,
            Statistics statistics = Statistics::running)
      : context_(context),
        images_(context, dataset),
        model_(context, spec, train::kImageSeed, /*with_gradients=*/false),
        side_(side),
        tiles_(tiles),
        form_(form),
        batch_(batch),
        statistics_(statistics),
        logits_(logits) {}

  void step() override {
    nn::Batch next = train::make_images(context_, images_, 0, batch_, data::whole(side_), model_.spec().in_channels);
    const nn::InputSize size{side_, side_};
    const DeviceBuffer<float> logits =
        tiles_ ? TiledInference(context_, model_, form_, batch_, size, statistics_).run(std::move(next.input), tiles_)
               : model_.forward(context_, std::move(next.input), batch_, size, form_);
    if (planning()) return;
    logits_.resize(logits.size());
    CUDA_CHECK(
        cudaMemcpyAsync(logits_.data(), logits.data(), logits.bytes(), cudaMemcpyDeviceToHost, context_.stream()));
    context_.synchronize();
  }
  std::size_t samples_per_step() const override { return batch_; }
  double figure() override { return logits_.empty() ? 0 : logits_.front(); }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

  static ByCategory predicted(const data::Dataset& dataset, const nn::NetworkSpec& spec, std::size_t side,
                              std::size_t tiles, const nn::NetworkForm& form, std::size_t batch) {
    const nn::InputSize size{side, side};
    ByCategory bytes = (tiles ? predict_tiled_inference(spec, batch, size, tiles, form)
                              : nn::predict_inference(spec, batch, size, form))
                           .at_peak;
    bytes[Category::data] += data::device_bytes(dataset) + nn::label_bytes(batch);
    return bytes;
  }

 private:
  Context& context_;
  data::DeviceDataset images_;
  nn::Network model_;
  std::size_t side_, tiles_;
  nn::NetworkForm form_;
  std::size_t batch_;
  Statistics statistics_;
  std::vector<float>& logits_;
};

}  // namespace oomlab::input_size
