#pragma once
// What the variants run: training steps of a network, whole or pruned, on images or on their pixels.

#include <optional>
#include <string>
#include <utility>

#include "data/device_dataset.h"
#include "harness/chapter.h"
#include "pruning.h"
#include "train/image_training.h"

namespace oomlab::lighter_models {

inline constexpr auto kOptimizer = nn::UpdateRule::momentum;
inline constexpr nn::OptimizerSettings kSettings{.sgd = {.lr = 0.05f, .momentum = 0.9f}};

/// A network that is trained, and how.
struct Model {
  enum class Kind {
    base,
    apart,
    lean,
    separable,
    narrow,
    channels_pruned,
    weights_pruned,
    shared,
    light,
    unet,
    two_branch
  } kind;
  std::string name;
  nn::NetworkSpec spec;
  nn::NetworkForm form = {};
  std::size_t channels_pruned = 0;  ///< percent, before the training
  std::size_t weights_pruned = 0;   ///< percent, before the training, and held at zero

  /// What is trained.
  nn::NetworkSpec trained() const { return channels_pruned ? prune(spec, channels_pruned).spec : spec; }
};

/// Throws VariantSkipped when the images have more classes than the network, which keeps one for pixels without ink.
inline void require_classes(const nn::NetworkSpec& spec, const data::Dataset& dataset) {
  const std::size_t classes = spec.classes - (spec.per_pixel ? 1 : 0);
  if (dataset.classes > classes)
    throw VariantSkipped(
        fmt::format("{} tells {} classes apart, {} has {}", spec.name, classes, dataset.name, dataset.classes));
}

/// The labels of pixels: that of the image where there is ink, `background` elsewhere.
inline __global__ void label_pixels_kernel(const float* __restrict__ images, const int* __restrict__ labels,
                                           int* __restrict__ pixel_labels, std::size_t batch, std::size_t pixels,
                                           std::size_t channels, int background) {
  for (std::size_t i : grid_range(batch * pixels))
    pixel_labels[i] = images[i * channels] > 0.25f ? labels[i / pixels] : background;
}

/// A batch of images at side × side, with the labels that the network learns: of each image or of each pixel.
inline nn::Batch make_labelled(Context& context, const data::DeviceDataset& images, std::size_t first,
                               std::size_t batch, std::size_t side, const nn::NetworkSpec& spec) {
  nn::Batch next = train::make_images(context, images, first, batch, data::whole(side), spec.in_channels);
  if (!spec.per_pixel) return next;
  const Phase phase(context.ledger(), "batch");
  const std::size_t pixels = checked_product(side, side), rows = checked_product(batch, pixels);
  auto labels = context.buffer<int>(rows, Category::data, "labels of pixels");
  launch(label_pixels_kernel, shape_for_items(rows), context.stream(), next.input.data(), next.labels.data(),
         labels.data(), batch, pixels, spec.in_channels, static_cast<int>(spec.classes - 1));
  next.labels = std::move(labels);
  return next;
}

class Training final : public Workload {
 public:
  Training(Context& context, const data::Dataset& dataset, const Model& model, std::size_t side, std::size_t batch)
      : context_(context),
        images_(context, dataset),
        network_(make_network(context, model)),
        mask_(model.weights_pruned ? std::make_optional<Mask>(context, network_, model.weights_pruned) : std::nullopt),
        optimizer_(context, network_.parameters(), {kOptimizer}, kSettings),
        form_(model.form),
        side_(side),
        batch_(batch) {}

  void step() override {
    network_.train_step(context_, make_labelled(context_, images_, first_, batch_, side_, network_.spec()),
                        {side_, side_}, optimizer_, form_);
    if (mask_) mask_->apply(context_);
    first_ += batch_;
  }
  std::size_t samples_per_step() const override { return batch_; }
  double figure() override { return network_.loss(context_); }
  std::uint64_t fingerprint() override { return network_.fingerprint(context_); }
  nn::Network& network() noexcept { return network_; }
  /// Weights that are zero, and those that the mask holds at zero; 0 without one.
  std::size_t zeros() const { return mask_ ? mask_->zeros(context_) : 0; }
  std::size_t masked() const noexcept { return mask_ ? mask_->masked() : 0; }

  static ByCategory predicted(const data::Dataset& dataset, const Model& model, std::size_t side, std::size_t batch) {
    const nn::NetworkSpec trained = model.trained();
    PeakBytes peak = nn::predict_training(trained, batch, {side, side}, kOptimizer, model.form);
    if (model.weights_pruned) peak.at_peak[Category::parameters] += mask_bytes(trained);
    if (model.channels_pruned) {  // both networks, the optimizer not yet, and what is needed to choose
      PeakTracker at_pruning(nn::resident_for_inference(model.spec));
      const ByCategory small = nn::resident_for_training(trained, nn::UpdateRule::sgd);
      for (const Category c : {Category::parameters, Category::gradients, Category::workspace})
        at_pruning.add(c, small[c]);
      at_pruning.add(Category::workspace, pruning_bytes(prune(model.spec, model.channels_pruned)));
      peak = later_peak(at_pruning.peak(), peak);
    }
    peak.at_peak[Category::data] += data::device_bytes(dataset);
    return peak.at_peak;
  }

 private:
  static nn::Network make_network(Context& context, const Model& model) {
    if (!model.channels_pruned) return {context, model.spec, train::kImageSeed, /*with_gradients=*/true};
    const PrunedSpec pruned = prune(model.spec, model.channels_pruned);
    nn::Network dense(context, model.spec, train::kImageSeed, /*with_gradients=*/false);
    nn::Network small(context, pruned.spec, train::kImageSeed, /*with_gradients=*/true);
    copy_kept(context, dense, small, pruned, channels_to_keep(context, dense, pruned));
    return small;
  }

  Context& context_;
  data::DeviceDataset images_;
  nn::Network network_;
  std::optional<Mask> mask_;
  nn::Optimizer<float> optimizer_;
  nn::NetworkForm form_;
  std::size_t side_, batch_, first_ = 0;
};

}  // namespace oomlab::lighter_models
