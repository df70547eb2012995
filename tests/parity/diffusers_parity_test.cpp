// Models that make images against diffusers' and transformers', in FP32: diffusers.json, made by generate_diffusers.py.

#include "diffusers_fixture.h"
#include "nn/models/image/autoencoder.h"
#include "nn/models/image/text_encoder.h"

namespace oomlab::test {
namespace {

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
    const UNetSpec spec = unet_of(c);
    Denoiser<float> model(context, spec, Residency::all, hashed(tensors_of(spec)));
    const DenoiserInput input(device, c, spec);
    const auto out = model.forward(context, input.latents.data(), input.timesteps.data(), input.text(), input.batch,
                                   input.size, form(), input.added());
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
