#include "nn/models/network.h"

#include <cmath>
#include <utility>

#include "nn/models/read_loss.h"
#include "nn/ops/values.h"

namespace oomlab::nn {

namespace {

// A layer's tensors: what parameters() calls them, and how many elements they have.
struct LayerTensor {
  const char* what;
  std::size_t count;
  float bound;  // of uniform values, or
  bool is_constant = false;
};
std::vector<LayerTensor> layer_tensors(const NetworkSpec& spec, std::size_t i) {
  const Layer& layer = spec.layers[i];
  const std::size_t in = spec.channels(layer.from);
  const auto one_over_root = [](std::size_t n) { return 1.0f / std::sqrt(static_cast<float>(n)); };
  std::vector<LayerTensor> all;
  switch (layer.kind) {
    case LayerKind::convolution:
    case LayerKind::depthwise: {
      const double fan = double(layer.kernel * layer.kernel) *
                         (layer.kind == LayerKind::depthwise ? 1.0 : static_cast<double>(layer.out));
      if (layer.shares == Layer::kNone)
        all.push_back({" weight", spec.weights(i), static_cast<float>(std::sqrt(6.0 / fan))});
      all.push_back({" gamma", layer.out, 1.0f, true});
      all.push_back({" beta", layer.out, 0.0f, true});
      break;
    }
    case LayerKind::linear:
      all.push_back({" weight", spec.weights(i), one_over_root(in)});
      all.push_back({" bias", layer.out, 0.0f, true});
      break;
    case LayerKind::squeeze_excite:
      all.push_back({" squeeze weight", checked_product(layer.squeeze, in), one_over_root(in)});
      all.push_back({" squeeze bias", layer.squeeze, 0.0f, true});
      all.push_back({" excite weight", checked_product(layer.out, layer.squeeze), one_over_root(layer.squeeze)});
      all.push_back({" excite bias", layer.out, 0.0f, true});
      break;
    default: break;
  }
  return all;
}

}  // namespace

// The layer whose weight layer i uses.
std::size_t Network::owner(std::size_t i) const {
  return spec_.layers[i].shares == Layer::kNone ? i : spec_.layers[i].shares;
}

Network::Network(Context& context, const NetworkSpec& spec, std::uint64_t seed, bool with_gradients) : spec_(spec) {
  std::uint64_t stream = 0;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const Layer& layer = spec.layers[i];
    Unit unit;
    for (const LayerTensor& shape : layer_tensors(spec, i)) {
      Tensor tensor;
      const std::string name = layer.name + shape.what;
      tensor.value = context.buffer<float>(shape.count, Category::parameters, name);
      if (with_gradients) tensor.gradient = context.buffer<float>(shape.count, Category::gradients, name + " gradient");
      if (shape.is_constant)
        fill(context, tensor.value.data(), shape.count, shape.bound);
      else
        fill_uniform(context, tensor.value.data(), shape.count, shape.bound, seed, stream++);
      unit.tensors.push_back(std::move(tensor));
    }
    if (layer.has_norm()) {
      unit.running_mean = context.buffer<float>(layer.out, Category::parameters, layer.name + " running mean");
      unit.running_variance = context.buffer<float>(layer.out, Category::parameters, layer.name + " running variance");
      fill(context, unit.running_mean.data(), layer.out, 0.0f);
      fill(context, unit.running_variance.data(), layer.out, 1.0f);
    }
    units_.push_back(std::move(unit));
  }
  if (!with_gradients) return;
  loss_ = context.buffer<float>(1, Category::workspace, "loss");
  fill(context, loss_.data(), 1, 0.0f);
}

std::vector<Parameter> Network::parameters() {
  std::vector<Parameter> all;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const std::vector<LayerTensor> shapes = layer_tensors(spec_, i);
    for (std::size_t t = 0; t < shapes.size(); ++t) {
      Tensor& tensor = units_[i].tensors[t];
      all.push_back(
          {spec_.layers[i].name + shapes[t].what, tensor.value.data(), tensor.gradient.data(), tensor.value.size()});
    }
  }
  return all;
}

Network::LayerTensors Network::tensors(std::size_t number) noexcept {
  Unit& unit = units_[number];
  const bool has_norm = spec_.layers[number].has_norm();
  const std::size_t behind = spec_.layers[number].shares == Layer::kNone ? 1 : 0;  // the weight, if it is its own
  return {.weight = units_[owner(number)].tensors[0].value.data(),
          .scale = has_norm ? unit.tensors[behind].value.data() : nullptr,
          .shift = unit.tensors[behind + has_norm].value.data(),
          .running = {unit.running_mean.data(), unit.running_variance.data()}};
}

std::vector<Parameter> Network::statistics() {
  std::vector<Parameter> all;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (!spec_.layers[i].has_norm()) continue;
    const auto add = [&](const char* what, DeviceBuffer<float>& values) {
      all.push_back({spec_.layers[i].name + what, values.data(), nullptr, values.size()});
    };
    add(" running mean", units_[i].running_mean);
    add(" running variance", units_[i].running_variance);
  }
  return all;
}

float Network::loss(Context& context) const { return read_loss(context, loss_); }

std::uint64_t Network::fingerprint(Context& context) const {
  std::uint64_t hash = kFingerprintStart;
  for (const Unit& unit : units_)
    for (const Tensor& tensor : unit.tensors)
      hash = nn::fingerprint(context, tensor.value.data(), tensor.value.bytes(), hash);
  return hash;
}

}  // namespace oomlab::nn
