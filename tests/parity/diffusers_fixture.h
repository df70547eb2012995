#pragma once
// diffusers.json, made by generate_diffusers.py: small models that make images, their weights and inputs.

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "device.h"
#include "hash.h"
#include "nn/models/image/denoiser.h"
#include "read_json.h"

namespace oomlab::test {

using namespace image;

inline const nlohmann::json& fixture() {
  static const nlohmann::json all = [] {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/diffusers.json");
    return read_json(file);
  }();
  return all;
}

// uniform() of generate.py: BF16's values, in a stream, about a value.
inline std::vector<float> uniform(std::uint64_t stream, std::size_t count, double bound, double about = 0) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float u = static_cast<float>(hash(fixture()["seed"], stream, i)) * 0x1p-23f - 1.0f;
    const float scaled = u * static_cast<float>(bound);
    values[i] = static_cast<float>(static_cast<__nv_bfloat16>(scaled + static_cast<float>(about)));
  }
  return values;
}

// generate_diffusers.py's streams of inputs, and of the first tensor by name.
enum Stream { kTokens, kSample, kContext, kAdded, kFirstTensor = 16 };

// Weights of these tensors. `all` are those of the whole model, of which these may be a part.
inline ReadTensor hashed(const std::vector<TensorOf>& all) {
  std::vector<std::string> names;
  for (const TensorOf& tensor : all) names.push_back(tensor.name);
  std::ranges::sort(names);
  return [names](const TensorOf& tensor, std::span<float> to) {
    const std::size_t number = std::ranges::lower_bound(names, tensor.name) - names.begin();
    double bound = 0.25, about = 0;
    if (tensor.shape.size() == 1)
      about = tensor.name.ends_with("weight") ? 1 : 0;
    else if (tensor.name.find("embedding.weight") != std::string::npos)
      bound = 1;
    else
      bound = std::sqrt(3.0 / static_cast<double>(tensor.elements() / tensor.shape[0]));
    std::ranges::copy(uniform(kFirstTensor + number, to.size(), bound, about), to.begin());
  };
}

inline std::vector<std::uint64_t> list(const nlohmann::json& values) {
  return values.get<std::vector<std::uint64_t>>();
}

inline UNetSpec unet_of(const nlohmann::json& c) {
  return {.channels = list(c["channels"]),
          .transformers = list(c["transformers"]),
          .heads = list(c["heads"]),
          .layers_per_block = c["layers_per_block"],
          .context = c["context"],
          .in_channels = c["in_channels"],
          .out_channels = c["out_channels"],
          .groups = c["groups"],
          .linear_projection = c["linear_projection"],
          .mid_transformers = c["mid_transformers"],
          .added_condition = c["added_condition"],
          .added_time = c["added_time"]};
}

/// What a denoiser of the fixture reads.
struct DenoiserInput {
  DenoiserInput(Device& device, const nlohmann::json& c, const UNetSpec& spec)
      : tokens(c["tokens"]), width(spec.context), size{c["size"][0], c["size"][1]} {
    timesteps = device.upload(c["timesteps"].get<std::vector<float>>());
    batch = timesteps.size();
    latents = device.upload(uniform(kSample, pixels() * spec.in_channels, 2));
    rows = device.upload(uniform(kContext, batch * tokens * width, 2));
    if (spec.added_condition == 0) return;
    pooled = device.upload(uniform(kAdded, batch * (spec.added_condition - 6 * spec.added_time), 2));
    numbers = device.upload(c["numbers"].get<std::vector<float>>());
  }
  std::size_t pixels() const { return batch * size.height * size.width; }
  TextRows<float> text() const { return {rows.data(), tokens, width}; }
  AddedConditions<float> added() const { return {pooled.data(), numbers.data()}; }

  std::size_t tokens, width, batch = 0;
  nn::InputSize size;
  DeviceBuffer<float> timesteps, latents, rows, pooled, numbers;
};

}  // namespace oomlab::test
