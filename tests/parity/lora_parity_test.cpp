// Gradients of adapters on denoisers against peft's and diffusers', in FP32: lora.json, made by generate_lora.py.

#include <cmath>
#include <fstream>

#include "data/digit_images.h"
#include "diffusers_fixture.h"
#include "nn/files/safetensors.h"
#include "nn/models/image/denoiser_training.h"

namespace oomlab::test {
namespace {

// generate_lora.py's streams.
constexpr std::uint64_t kNoise = 4, kFirstAdapter = 4096, kFirstSign = 8192;

struct LoraParity : ::testing::TestWithParam<PixelAttention> {
  void expect_as_peft(const std::string& name, const nlohmann::json& c, const ReadTensor& weights) {
    const nlohmann::json& expected = lora()["cases"][name];
    const UNetSpec spec = unet_of(c);
    Device device;
    Context& context = device.context;
    Denoiser<float> model(context, spec, Residency::all, weights);
    DenoiserTraining<float> training(context, model, {lora()["rank"], lora()["alpha"]}, 1, {});
    const std::vector<nn::Parameter> adapters = training.adapters().parameters();
    ASSERT_EQ(adapters.size(), expected["gradients"].size());
    ASSERT_EQ(lora_parameters(spec, lora()["rank"]), expected["parameters"].get<std::uint64_t>());
    for (std::size_t i = 0; i < adapters.size(); ++i)
      device.put(adapters[i].value, uniform(kFirstAdapter + i, adapters[i].count, 0.25));

    const DenoiserInput input(device, c, spec);
    const auto noise = device.upload(uniform(kNoise, input.pixels() * spec.out_channels, 1));
    training.gradients(context,
                       {input.latents.data(), noise.data(), input.timesteps.data(), input.text(), input.added(),
                        input.batch, input.size},
                       {GetParam(), nn::ConvolutionWay::tiled});
    EXPECT_NEAR(training.loss(context), expected["loss"].get<double>(), 1e-4 * expected["loss"].get<double>());
    for (std::size_t i = 0; i < adapters.size(); ++i) {
      const nlohmann::json& of = expected["gradients"].at(adapters[i].name);
      const double length = of[0];
      double square = 0, with_signs = 0;
      const std::vector<float> found = device.download(adapters[i].gradient, adapters[i].count);
      for (std::size_t k = 0; k < found.size(); ++k) {
        square += double(found[k]) * found[k];
        with_signs += found[k] * (hash(fixture()["seed"], kFirstSign + i, k) % 2 ? 1.0 : -1.0);
      }
      EXPECT_NEAR(std::sqrt(square), length, 1e-4 * length) << name << ", " << adapters[i].name;
      EXPECT_NEAR(with_signs, of[1].get<double>(), 1e-4 * length * std::sqrt(double(found.size())))
          << name << ", " << adapters[i].name;
    }
  }
  static const nlohmann::json& lora() {
    static const nlohmann::json all = [] {
      std::ifstream file(std::string(OOMLAB_FIXTURES) + "/lora.json");
      return read_json(file);
    }();
    return all;
  }
};

TEST_P(LoraParity, SmallDenoisers) {
  for (const auto& [name, c] : fixture()["unets"].items()) expect_as_peft(name, c, hashed(tensors_of(unet_of(c))));
}

TEST_P(LoraParity, Digits) {
  const nn::SafetensorsFile file(data::digit_image_weights("denoiser"), "the course's denoiser");
  expect_as_peft("digits", lora()["cases"]["digits"], tensors_from(file));
}

INSTANTIATE_TEST_SUITE_P(Forms, LoraParity,
                         ::testing::Values(PixelAttention::textbook, PixelAttention::tiled, PixelAttention::fused),
                         [](const auto& form) { return std::string(name_of(form.param)); });

}  // namespace
}  // namespace oomlab::test
