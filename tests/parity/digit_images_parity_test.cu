// Chapter 18's pipeline against diffusers' and transformers' with the same weights: digit_images.json, which the stage `parity` of
// bench/make_digit_images makes.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "../../chapters/18_image_generation/digits.h"
#include "device.h"
#include "read_json.h"

namespace oomlab::test {
namespace {

using namespace image_generation;

const nlohmann::json& fixture() {
  static const nlohmann::json all = [] {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/digit_images.json");
    return read_json(file);
  }();
  return all;
}
std::vector<float> floats(const char* name) { return fixture().at(name).get<std::vector<float>>(); }

// Of what two images have, that of one of them.
std::span<const float> part(const std::vector<float>& of_both, std::size_t which) {
  return std::span(of_both).subspan(which * of_both.size() / 2, of_both.size() / 2);
}

void expect_near(std::span<const float> found, std::span<const float> expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], tolerance) << i;
}

TEST(DigitImages, BeginWithTheSameNoise) {
  const std::vector<float> expected = floats("first_noise");
  for (std::size_t i = 0; i < 2; ++i)
    expect_near(first_noise(fixture()["seed"], fixture()["images"][i], expected.size() / 2), part(expected, i), 1e-6);
}

TEST(DigitImages, TakeTheSameSteps) {
  const std::vector<SamplerStep> steps = ddim_steps(fixture()["steps"], fixture()["scaling_factor"]);
  const std::vector<double> bars = alpha_bars();
  ASSERT_EQ(steps.size(), fixture()["timesteps"].size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].timestep, fixture()["timesteps"][i]);
    EXPECT_NEAR(bars[std::size_t(steps[i].timestep)], double(fixture()["alpha_bars"][i]), 1e-12);
  }
}

// From the word to the pixels, in eight steps, which each take the differences of the one before along.
TEST(DigitImages, AreTheSamePixels) {
  const PipelineSpec& spec = pipeline_named("digits");
  EXPECT_EQ(spec.autoencoder.scaling, double(fixture()["scaling_factor"]));
  const std::vector<float> expected = floats("decoded");
  for (std::size_t i = 0; i < 2; ++i) {
    Device device;
    Pipeline<float> pipeline(device.context, spec, {.batch = 1}, weights_of(spec));
    const Wishes wishes{
        .words = {fixture()["names"][i]}, .seed = fixture()["seed"], .first_image = fixture()["images"][i]};
    const DeviceBuffer<float> image = pipeline.generate(wishes);
    std::vector<float> pixels = device.download(image.data(), image.size());
    for (float& pixel : pixels) pixel = std::clamp(pixel, -1.0f, 1.0f);
    expect_near(pixels, part(expected, i), 1e-4);
  }
}

}  // namespace
}  // namespace oomlab::test
