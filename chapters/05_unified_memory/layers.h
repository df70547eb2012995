#pragma once
// The work of this chapter: a training step of a perceptron that asks, layer by layer, where the layer's tensors are.
// Forward visits layers 1…L, backward L…1; a layer is updated as soon as its gradient is there. Which memory holds the
// tensors between the visits is the business of a Place.

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/backend.h"
#include "nn/models/read_loss.h"
#include "nn/ops/activation.h"
#include "nn/ops/loss.h"
#include "nn/ops/matmul.h"
#include "nn/ops/values.h"
#include "train/image_training.h"

namespace oomlab::unified_memory {

using namespace train;

/// One layer's tensors, each [weights | padding | biases] of layer_count() floats, at addresses that the device can
/// use.
struct LayerTensors {
  float* value;
  float* gradient;
  float* first;   ///< AdamW's first moments
  float* second;  ///< and its second moments
};

/// Where the biases begin: aligned like an allocation.
inline std::size_t bias_offset(const nn::MlpSpec& spec, std::size_t l) {
  return round_to_granule(checked_product(checked_product(spec.widths[l - 1], spec.widths[l]), sizeof(float))) /
         sizeof(float);
}
inline std::size_t layer_count(const nn::MlpSpec& spec, std::size_t l) {
  return checked_sum(bias_offset(spec, l), spec.widths[l]);
}
/// Bytes of one tensor of layer l, as the ledger counts them.
inline std::size_t layer_bytes(const nn::MlpSpec& spec, std::size_t l) {
  return round_to_granule(checked_product(layer_count(spec, l), sizeof(float)));
}
/// Bytes of all layers' values: gradients, first and second moments have as many.
inline std::size_t state_bytes(const nn::MlpSpec& spec) {
  std::size_t sum = 0;
  for (std::size_t l = 1; l <= spec.layers(); ++l) sum = checked_sum(sum, layer_bytes(spec, l));
  return sum;
}

/// Where the layers' tensors are between visits. Visits 0…L−1 are the forward pass, L…2L−1 the backward pass.
class Place {
 public:
  virtual ~Place() = default;
  /// The tensors of the visited layer; forward needs `value` only, the others may then be null.
  virtual LayerTensors arrive(std::size_t visit) = 0;
  virtual void leave(std::size_t) {}
  /// Address of layer l's values where they rest, readable by cudaMemcpyDefault once the device is idle.
  virtual const float* value(std::size_t l) = 0;
  /// Bytes that a step reads and writes where they rest, from across the bus.
  virtual std::size_t bytes_in_place() const { return 0; }
};

/// The first values of a layer, and zero moments.
inline void initialise(Context& context, const nn::MlpSpec& spec, std::size_t l, const LayerTensors& t) {
  const std::size_t count = layer_count(spec, l);
  nn::fill(context, t.value, count, 0.0f);
  nn::fill_uniform(context, t.value, spec.widths[l - 1] * spec.widths[l],
                   static_cast<float>(std::sqrt(6.0 / static_cast<double>(spec.widths[l - 1]))), kImageSeed, l);
  nn::fill(context, t.first, count, 0.0f);
  nn::fill(context, t.second, count, 0.0f);
}

/// What one variant's last observed step moved, and how much memory it has outside of the budget.
struct Traffic {
  std::optional<ManagedTraffic> step;  ///< nothing where the device does not tell
  std::size_t outside_bytes = 0, bytes_in_place = 0;
};

/// A batch that the host provides instead of the dataset on the device: fills [batch, width] inputs and labels.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  struct Views {
    float* input;
    const int* labels;
  };
  /// Device addresses of the next batch, usable on the context's stream until the next call.
  virtual Views next() = 0;
};

class LayerTraining final : public Workload {
 public:
  using MakePlace = std::function<std::unique_ptr<Place>(Context&)>;
  using MakeSource = std::function<std::unique_ptr<BatchSource>(Context&)>;

  /// Allocates the activations, then makes the source of batches, then the place.
  LayerTraining(Context& context, const nn::MlpSpec& spec, std::size_t batch, const MakeSource& source,
                const MakePlace& place, Traffic& traffic)
      : context_(context), spec_(spec), batch_(batch), traffic_(traffic) {
    for (std::size_t l = 1; l <= spec.layers(); ++l)
      outputs_.push_back(
          context.buffer<float>(checked_product(batch, spec.widths[l]), Category::activations, "output"));
    for (auto& gradient : input_gradients_)
      gradient =
          context.buffer<float>(checked_product(batch, widest_hidden(spec)), Category::activations, "input gradient");
    if (context.memory().observes_device()) watch_.emplace();
    row_loss_ = context.buffer<float>(batch, Category::workspace, "row loss");
    loss_ = context.buffer<float>(1, Category::workspace, "loss");
    source_ = source(context);
    place_ = place(context);
    context.synchronize();
    (void)take_managed_traffic();
  }

  void step() override {
    const std::size_t layers = spec_.layers();
    const auto& w = spec_.widths;
    const BatchSource::Views x = source_->next();
    const auto input_of = [&](std::size_t l) { return l == 1 ? x.input : outputs_[l - 2].data(); };
    {
      const Phase phase(context_.ledger(), "forward");
      for (std::size_t l = 1; l <= layers; ++l) {
        const LayerTensors t = place_->arrive(l - 1);
        float* const y = outputs_[l - 1].data();
        nn::linear_forward(context_, input_of(l), t.value, y, batch_, w[l - 1], w[l]);
        nn::bias_activation(context_, y, t.value + bias_offset(spec_, l), batch_, w[l],
                            l == layers ? nn::Activation::none : spec_.activation);
        place_->leave(l - 1);
      }
    }
    const Phase phase(context_.ledger(), "backward and optimizer");
    float* dy = outputs_[layers - 1].data();  // the logits become their gradient
    const float mean = 1.0f / static_cast<float>(batch_);
    nn::softmax_cross_entropy(context_, dy, x.labels, row_loss_.data(), batch_, w[layers], mean);
    nn::scaled_sum(context_, row_loss_.data(), batch_, mean, loss_.data());
    ++steps_;
    for (std::size_t l = layers; l >= 1; --l) {
      const std::size_t visit = 2 * layers - l;
      const LayerTensors t = place_->arrive(visit);
      if (l < layers) nn::activation_backward(context_, dy, outputs_[l - 1].data(), batch_ * w[l], spec_.activation);
      const std::size_t bias = bias_offset(spec_, l);
      nn::linear_backward_weight(context_, dy, input_of(l), t.gradient, t.gradient + bias, batch_, w[l - 1], w[l]);
      float* const dx = input_gradients_[l % 2].data();
      if (l > 1) nn::linear_backward_input(context_, dy, t.value, dx, batch_, w[l - 1], w[l]);
      dy = dx;
      for (const auto& [first, count] : {std::pair(std::size_t(0), w[l - 1] * w[l]), std::pair(bias, w[l])})
        nn::adamw_update(context_, t.value + first, t.gradient + first, t.first + first, t.second + first, count, {},
                         steps_);
      place_->leave(visit);
    }
  }

  std::size_t samples_per_step() const override { return batch_; }
  double figure() override {
    const float loss = nn::read_value(context_, loss_);
    traffic_ = {planning() ? std::nullopt : take_managed_traffic(), context_.host_memory().live_bytes(),
                place_->bytes_in_place()};
    return loss;
  }
  std::uint64_t fingerprint() override {
    CUDA_CHECK(cudaDeviceSynchronize());  // a place may copy on a stream of its own
    std::uint64_t hash = nn::kFingerprintStart;
    for (std::size_t l = 1; l <= spec_.layers(); ++l)
      hash = nn::fingerprint(context_, place_->value(l), layer_count(spec_, l) * sizeof(float), hash);
    return hash;
  }

  /// Everything but the batch's source, the place and the cuBLAS workspace: activations, losses.
  static ByCategory predicted(const nn::MlpSpec& spec, std::size_t batch) {
    ByCategory bytes;
    const auto floats = [](std::size_t count) { return round_to_granule(checked_product(count, sizeof(float))); };
    const auto add = [&](Category c, std::size_t more) { bytes[c] = checked_sum(bytes[c], more); };
    for (std::size_t l = 1; l <= spec.layers(); ++l)
      add(Category::activations, floats(checked_product(batch, spec.widths[l])));
    for (int i = 0; i < 2; ++i) add(Category::activations, floats(checked_product(batch, widest_hidden(spec))));
    add(Category::workspace, floats(batch));
    add(Category::workspace, floats(1));
    return bytes;
  }

 private:
  static std::size_t widest_hidden(const nn::MlpSpec& spec) {
    std::size_t widest = 0;
    for (std::size_t l = 1; l < spec.layers(); ++l) widest = std::max(widest, spec.widths[l]);
    return widest;
  }
  Context& context_;
  nn::MlpSpec spec_;
  std::size_t batch_;
  Traffic& traffic_;
  std::vector<DeviceBuffer<float>> outputs_;
  DeviceBuffer<float> input_gradients_[2], row_loss_, loss_;
  std::optional<ManagedWatch> watch_;  // not while steps are timed
  std::unique_ptr<BatchSource> source_;
  std::unique_ptr<Place> place_;
  std::uint64_t steps_ = 0;
};

}  // namespace oomlab::unified_memory
