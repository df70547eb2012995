// What models of images allocate against the walk that predicts it (plan/image/walk.h): to the byte, split included.

#include "image_runs.h"

namespace oomlab::test {
namespace {

void expect_as_predicted(const PipelineSpec& spec, const Run& run, std::size_t batch, nn::InputSize size) {
  const std::string what = spec.name + ", " + shown(run) + ", " + std::to_string(batch) + " of " +
                           std::to_string(size.height) + " x " + std::to_string(size.width);
  expect_equal(denoised(spec, run, batch, size).device, predict_denoiser(spec, run, batch, size).at_peak,
               "denoiser, " + what);
  if (run.denoiser_bits) return;
  const TextEncoderSpec& text = spec.text.front();
  expect_equal(encoded(text, run, batch).device, predict_text_encoder(text, run, batch).at_peak, "text, " + what);
  expect_equal(decoded(spec.autoencoder, run, batch, size).device,
               predict_decoder(spec.autoencoder, run, batch, size).at_peak, "decoder, " + what);
}

TEST(ImageBytes, EveryFormIsAsPredicted) {
  const PipelineSpec spec = three_levels();
  for (const Residency residency : kResidencies)
    for (const PixelAttention attention : kAttentions)
      for (const DType type : kModelDTypes)
        expect_as_predicted(spec, {.dtype = type, .residency = residency, .attention = attention}, 1, {8, 4});
}

TEST(ImageBytes, DigitsAreAsPredicted) {
  const PipelineSpec& spec = pipeline_named("digits");
  for (const Residency residency : kResidencies) expect_as_predicted(spec, {.residency = residency}, 2, {8, 8});
  expect_as_predicted(spec, {.dtype = DType::fp16, .attention = PixelAttention::tiled}, 3, {8, 8});
  expect_as_predicted(spec, {.residency = Residency::layer, .attention = PixelAttention::fused}, 1, {16, 8});
}

TEST(ImageBytes, ConvolutionsTakeTheirColumns) {
  const PipelineSpec spec = three_levels();
  for (const auto way : {nn::ConvolutionWay::im2col, nn::ConvolutionWay::direct})
    for (const Residency residency : {Residency::all, Residency::layer})
      expect_as_predicted(spec, {.residency = residency, .convolution = way}, 2, {4, 8});
}

TEST(ImageBytes, FewerBitsAreAsPredicted) {
  const PipelineSpec spec = three_levels();
  for (const unsigned bits : {8u, 4u})
    for (const Residency residency : kResidencies)
      for (const DType type : kModelDTypes)
        expect_as_predicted(spec, {.dtype = type, .residency = residency, .denoiser_bits = bits}, 1, {4, 4});
}

// Behind it there are so few channels that no residual block is larger than the convolution of the enlarged image.
TEST(ImageBytes, UpsamplingMayBeThePeak) {
  AutoencoderSpec spec = pipeline_named("digits").autoencoder;
  spec.channels = {4, 32};
  spec.groups = 4;
  const image::Run run{.attention = PixelAttention::fused, .convolution = nn::ConvolutionWay::direct};
  const ByCategory found = decoded(spec, run, 1, {8, 8}).device;
  expect_equal(found, predict_decoder(spec, run, 1, {8, 8}).at_peak, "decoder");
  // x, its norm and what the first convolution makes of it, in the block behind the upsampler
  EXPECT_EQ(found[Category::activations], (32 + 32 + 4) * 16 * 16 * sizeof(float));
}

// What waits in pinned memory: every tensor, and nothing where all are resident.
TEST(ImageBytes, WeightsWaitInPinnedMemory) {
  const PipelineSpec spec = three_levels();
  for (const Residency residency : kResidencies) {
    const image::Run run{.dtype = DType::bf16, .residency = residency};
    std::uint64_t expected = 0;
    if (residency != Residency::all)
      for (const TensorOf& tensor : tensors_of(*spec.unet())) expected += round_to_granule(2 * tensor.elements());
    const HostBytes host = denoised(spec, run, 1, {4, 4}).host;
    EXPECT_EQ(host.pinned.total(), expected) << name_of(residency);
    EXPECT_EQ(host.pinned[Category::parameters], expected) << name_of(residency);
  }
}

// A resident model is larger than one of which a block is there, by what is not there.
TEST(ImageBytes, ABlockAtATimeIsTheLargestBlock) {
  const TextEncoderSpec spec = three_levels().text.front();
  const auto parameters = [&](Residency residency) {
    return encoded(spec, {.residency = residency}, 1).device[Category::parameters];
  };
  std::uint64_t all = 0, layer = 0;
  for (const TensorOf& tensor : tensors_of(spec)) {
    const std::uint64_t bytes = round_to_granule(4 * tensor.elements());
    all += bytes;
    if (tensor.name.find("layers.1.") != std::string::npos) layer += bytes;
  }
  EXPECT_EQ(parameters(Residency::all), all);
  EXPECT_EQ(parameters(Residency::model), all);
  EXPECT_EQ(parameters(Residency::layer), layer);
}

}  // namespace
}  // namespace oomlab::test
