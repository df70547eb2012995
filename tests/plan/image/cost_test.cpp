// What a run costs beside memory of the device.

#include <gtest/gtest.h>

#include "stored.h"

namespace {

using namespace oomlab;
using namespace oomlab::image;

// A tiny pipeline by hand: each product of a pass of the text encoder.
TEST(ImageCost, CountsTheProductsOfAText) {
  PipelineSpec spec = pipeline_named("digits");
  spec.guidance = 1;
  const double all = cost_of(spec, {.steps = 1}).multiply_adds;
  TextEncoderSpec& text = spec.text.front();
  text.layers += 1;
  const double rows = 8, width = 32, mlp = 64;
  const double layer = 4 * rows * width * width + 2 * rows * rows * width + 2 * rows * width * mlp;
  EXPECT_EQ(cost_of(spec, {.steps = 1}).multiply_adds - all, layer);
}

// Published: 0.34 to 0.40 T for a pass at 64 x 64 latents, depending on whether attention's products are counted.
TEST(ImageCost, IsThatOfSdsUNet) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const double two = cost_of(spec, {.steps = 2}).multiply_adds, three = cost_of(spec, {.steps = 3}).multiply_adds;
  EXPECT_NEAR((three - two) / 2, 0.40e12, 0.01e12);
}

TEST(ImageCost, GrowsWithStepsAndImages) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const ImageRun one{.steps = 1}, four{.batch = 4, .steps = 1};
  EXPECT_EQ(cost_of(spec, four).multiply_adds, 4 * cost_of(spec, one).multiply_adds);
  EXPECT_EQ(cost_of(spec, four).weight_bytes, cost_of(spec, one).weight_bytes) << "weights are read once a pass";
}

// One model at a time: each model once. Layer by layer: the denoiser in every pass.
TEST(ImageCost, OfTheBusIsTheWeights) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const double text = double(stored(tensors_of(spec.text[0]), 2));
  const double denoiser = double(stored(tensors_of(spec.denoiser), 2));
  const double decoder = double(stored(tensors_of(spec.autoencoder, AutoencoderPart::decoder), 2));
  ImageRun run{.steps = 20, .dtype = DType::fp16};
  EXPECT_EQ(cost_of(spec, run).bus_bytes, 0);
  run.residency = Residency::model;
  EXPECT_EQ(cost_of(spec, run).bus_bytes, text + denoiser + decoder);
  run.residency = Residency::layer;
  EXPECT_EQ(cost_of(spec, run).bus_bytes, text + 20 * denoiser + decoder);
  run.guidance_passes = 2;
  EXPECT_EQ(cost_of(spec, run).bus_bytes, text + 40 * denoiser + decoder);
  run.decoder = DecoderCut::images;
  run.batch = 3;
  EXPECT_EQ(cost_of(spec, run).bus_bytes, text + 40 * denoiser + 3 * decoder);
}

}  // namespace
