// Models that make images against diffusers' and transformers', in FP32: diffusers.json, made by generate_diffusers.py.

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "device.h"
#include "hash.h"
#include "nn/models/image/autoencoder.h"
#include "nn/models/image/denoiser.h"
#include "nn/models/image/text_encoder.h"
#include "read_json.h"

namespace oomlab::test {
namespace {

using namespace image;

const nlohmann::json& fixture() {
  static const nlohmann::json all = [] {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/diffusers.json");
    return read_json(file);
  }();
  return all;
}

// uniform() of generate.py: BF16's values, in a stream, about a value.
std::vector<float> uniform(std::uint64_t stream, std::size_t count, double bound, double about = 0) {
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
ReadTensor hashed(const std::vector<TensorOf>& all) {
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

std::vector<std::uint64_t> list(const nlohmann::json& values) { return values.get<std::vector<std::uint64_t>>(); }

class DiffusersParity : public ::testing::TestWithParam<PixelAttention> {
 protected:
  Form form() const { return {GetParam(), nn::ConvolutionWay::tiled}; }
  void expect(const DeviceBuffer<float>& found, const nlohmann::json& expected, const std::string& what) {
    expect_close(device.download(found), expected.get<std::vector<float>>(), 1e-4, what);
  }
  Device device;
  Context& context = device.context;
};

TEST_P(DiffusersParity, TextEncoders) {
  for (const auto& [name, c] : fixture()["texts"].items()) {
    const TextEncoderSpec spec{
        .name = name,
        .vocabulary = c["vocabulary"],
        .positions = c["positions"],
        .width = c["width"],
        .layers = c["layers"],
        .heads = c["heads"],
        .mlp = c["mlp"],
        .activation = c["activation"] == "gelu" ? TextActivation::gelu : TextActivation::quick_gelu,
        .projection = c["projection"]};
    TextEncoder<float> model(context, spec, Residency::all, hashed(tensors_of(spec)));
    const std::size_t texts = 2;
    std::vector<int> tokens(texts * spec.positions);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int>(hash(fixture()["seed"], kTokens, i) % spec.vocabulary);
    std::vector<std::size_t> ends;
    if (spec.projection) ends = c["ends"].get<std::vector<std::size_t>>();
    const auto out = model.forward(context, device.upload(tokens).data(), texts, form(), ends);
    expect(out.rows, c["hidden"], name);
    if (spec.projection) expect(out.pooled, c["pooled"], name + ", pooled");
  }
}

TEST_P(DiffusersParity, Denoisers) {
  for (const auto& [name, c] : fixture()["unets"].items()) {
    const UNetSpec spec{.channels = list(c["channels"]),
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
    Denoiser<float> model(context, spec, Residency::all, hashed(tensors_of(spec)));
    const auto timesteps = device.upload(c["timesteps"].get<std::vector<float>>());
    const std::size_t batch = timesteps.size(), tokens = c["tokens"];
    const nn::InputSize size{c["size"][0], c["size"][1]};
    const auto latents = device.upload(uniform(kSample, batch * size.height * size.width * spec.in_channels, 2));
    const auto text = device.upload(uniform(kContext, batch * tokens * spec.context, 2));
    DeviceBuffer<float> pooled, numbers;
    if (spec.added_condition) {
      pooled = device.upload(uniform(kAdded, batch * (spec.added_condition - 6 * spec.added_time), 2));
      numbers = device.upload(c["numbers"].get<std::vector<float>>());
    }
    const auto out = model.forward(context, latents.data(), timesteps.data(), {text.data(), tokens, spec.context},
                                   batch, size, form(), {pooled.data(), numbers.data()});
    expect(out, c["out"], name);
  }
}

TEST_P(DiffusersParity, Autoencoders) {
  for (const auto& [name, c] : fixture()["autoencoders"].items()) {
    const AutoencoderSpec spec{.image_channels = c["image_channels"],
                               .channels = list(c["channels"]),
                               .layers_per_block = c["layers_per_block"],
                               .latent_channels = c["latent_channels"],
                               .groups = c["groups"],
                               .quant_convolutions = c["quant_convolutions"]};
    const ReadTensor weights = hashed(tensors_of(spec, AutoencoderPart::both));
    Decoder<float> decoder(context, spec, Residency::all, weights);
    Encoder<float> encoder(context, spec, Residency::all, weights);
    const std::size_t batch = c["batch"];
    const nn::InputSize small{c["size"][0], c["size"][1]};
    const nn::InputSize large{small.height * spec.factor(), small.width * spec.factor()};
    auto latents = device.upload(uniform(kSample, batch * small.height * small.width * spec.latent_channels, 2));
    auto images = device.upload(uniform(kContext, batch * large.height * large.width * spec.image_channels, 1));
    expect(decoder.forward(context, std::move(latents), batch, small, form()), c["decoded"], name + ", decoded");
    expect(encoder.forward(context, std::move(images), batch, large, form()), c["moments"], name + ", encoded");
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, DiffusersParity,
                         ::testing::Values(PixelAttention::textbook, PixelAttention::tiled, PixelAttention::fused),
                         [](const auto& form) { return std::string(name_of(form.param)); });

}  // namespace
}  // namespace oomlab::test
