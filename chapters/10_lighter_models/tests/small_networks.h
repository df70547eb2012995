#pragma once
// Networks for tests: small ones of each kind, with what tests read and write of them.

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../../tests/nn/device.h"
#include "nn/files/state_file.h"
#include "nn/models/network.h"

namespace oomlab::test {

using nn::Layer;
using nn::Network;
using nn::NetworkSpec;

inline NetworkSpec basic() { return nn::parse_network("resnet:2-6"); }
inline NetworkSpec bottleneck() { return nn::network_of(nn::parse_resnet("resnet50"), {.width_percent = 4}); }
// Nothing can be pruned, everything is copied: depthwise convolutions stand between the others.
inline NetworkSpec separable() { return nn::parse_network("mobilenet:3"); }
inline NetworkSpec segmenter() { return nn::parse_network("unet:2-5"); }
// A layer of each kind that has weights.
inline NetworkSpec squeezed() {
  NetworkSpec spec{.name = "squeezed", .in_channels = 3, .classes = 4, .layers = {}};
  const auto add = [&](Layer layer) { spec.layers.push_back(std::move(layer)); };
  add({.name = "first", .kind = nn::LayerKind::convolution, .from = 0, .out = 9, .kernel = 3, .padding = 1});
  add({.name = "each", .kind = nn::LayerKind::depthwise, .from = 1, .out = 9, .kernel = 3, .padding = 1});
  add({.name = "factors", .kind = nn::LayerKind::squeeze_excite, .from = 2, .out = 9, .squeeze = 5});
  add({.name = "pool", .kind = nn::LayerKind::global_pool, .from = 3, .out = 9});
  add({.name = "head", .kind = nn::LayerKind::linear, .from = 4, .out = 4});
  return spec;
}

inline std::vector<nn::Parameter> everything(Network& model) {
  std::vector<nn::Parameter> all = model.parameters();
  for (nn::Parameter& p : model.statistics()) all.push_back(p);
  return all;
}
inline std::vector<nn::StateTensor> state(Network& model) {
  std::vector<nn::StateTensor> all;
  for (const nn::Parameter& p : everything(model))
    all.push_back({p.name, DType::fp32, p.value, p.count * sizeof(float)});
  return all;
}
inline void set(Device& device, const nn::Parameter& p, const std::vector<float>& values) {
  ASSERT_EQ(values.size(), p.count);
  CUDA_CHECK(cudaMemcpyAsync(p.value, values.data(), p.count * sizeof(float), cudaMemcpyHostToDevice,
                             device.context.stream()));
  device.context.synchronize();
}
inline bool ends_with(const std::string& text, const char* end) { return std::string_view(text).ends_with(end); }
// Norms that do something.
inline void stir(Device& device, Network& model) {
  unsigned seed = 0;
  for (const nn::Parameter& p : everything(model)) {
    std::vector<float> values = random_floats(p.count, ++seed, 0.5f);
    if (ends_with(p.name, " gamma") || ends_with(p.name, " variance"))
      for (float& v : values) v += 1.0f;
    if (!ends_with(p.name, " weight")) set(device, p, values);
  }
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

inline constexpr std::size_t kBatch = 3;
inline constexpr nn::InputSize kSize{16, 16};
inline std::vector<float> logits(Device& device, Network& model) {
  auto input = device.upload(random_floats(kBatch * kSize.height * kSize.width * model.spec().in_channels, 77));
  return device.download(model.forward(device.context, std::move(input), kBatch, kSize));
}
inline nn::Batch batch(Device& device, const NetworkSpec& spec, unsigned seed) {
  nn::Batch b{device.upload(random_floats(kBatch * kSize.height * kSize.width * spec.in_channels, seed)), {}, kBatch};
  b.labels = device.upload(random_labels(nn::shapes_of(spec, kBatch, kSize).labels(), spec.classes, seed + 1));
  return b;
}

template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}
inline const char* const kNothingLeft = "pruning 100 % leaves nothing; prune 0 to 99 %";

}  // namespace oomlab::test
