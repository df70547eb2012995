// Peaks of forward passes, against closed forms at the moment that is known to be the fullest.

#include <gtest/gtest.h>

#include <stdexcept>

#include "plan/quantised/format.h"
#include "stored.h"

namespace {

using namespace oomlab;
using namespace oomlab::image;
using nn::AttentionForm;

ImageRun half(AttentionForm attention = AttentionForm::fused) { return {.dtype = DType::fp16, .attention = attention}; }

// SD 1.5's U-Net at 64 x 64, two predictions. The fullest moment is in a transformer at full resolution: x and y, what
// waits (conv_in's and the first layer's), the 8 C of GEGLU's input and the 4 C that it makes.
TEST(ImagePeaks, OfADenoiserAreThoseOfItsWidestMlp) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const PeakBytes peak = predict_denoiser(spec, half(), 2, {64, 64});
  const std::uint64_t map = std::uint64_t(2) * 64 * 64 * 320 * 2;
  const std::uint64_t time = up(2 * 1280 * 2), latents = up(2 * 64 * 64 * 4 * 2), text = up(2 * 77 * 768 * 2);
  EXPECT_EQ(peak.at_peak[Category::activations], 16 * map + time + latents + text);
  EXPECT_EQ(peak.at_peak[Category::parameters], stored(tensors_of(spec.denoiser), 2));
  EXPECT_EQ(peak.at_peak[Category::data], 512u);
  EXPECT_EQ(peak.at_peak[Category::workspace], 0u);
}

// With textbook attention it is the probabilities of the same transformers, 8 heads of 4,096 x 4,096: then there are x, y,
// what waits, q, k and v.
TEST(ImagePeaks, OfTextbookAttentionHaveItsProbabilities) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const PeakBytes peak = predict_denoiser(spec, half(AttentionForm::textbook), 2, {64, 64});
  const std::uint64_t map = std::uint64_t(2) * 64 * 64 * 320 * 2;
  const std::uint64_t probabilities = std::uint64_t(2) * 8 * 4096 * 4096 * 2;
  const std::uint64_t time = up(2 * 1280 * 2), latents = up(2 * 64 * 64 * 4 * 2), text = up(2 * 77 * 768 * 2);
  EXPECT_EQ(peak.at_peak[Category::activations], 7 * map + probabilities + time + latents + text);
}

// Tiles have no more scores than the output: q, k, v, a and one tile are less than the MLP.
TEST(ImagePeaks, OfTiledAttentionAreThoseOfFused) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  EXPECT_EQ(predict_denoiser(spec, half(AttentionForm::tiled), 2, {64, 64}).total(),
            predict_denoiser(spec, half(), 2, {64, 64}).total());
}

// A text's MLP: x, n and the hidden layer; or q, k, v and the attended rows of the attention, which are fewer.
TEST(ImagePeaks, OfATextEncoderAreThoseOfItsMlp) {
  const TextEncoderSpec& spec = pipeline_named("sd-1.5").text.front();
  const PeakBytes peak = predict_text_encoder(spec, half(), 2);
  const std::uint64_t rows = 2 * 77;
  EXPECT_EQ(peak.at_peak[Category::activations], up(rows * 768 * 2) * 2 + up(rows * 3072 * 2));
  EXPECT_EQ(peak.at_peak[Category::parameters], stored(tensors_of(spec), 2));
  EXPECT_EQ(peak.at_peak[Category::data], up(rows * 4));
}

// SDXL's denoiser also reads six numbers of each image, FP32, beside its time steps.
TEST(ImagePeaks, OfSdxlHaveSixNumbersOfEachImage) {
  const std::uint64_t images = 100;
  const PeakBytes peak = predict_denoiser(pipeline_named("sdxl"), half(), images, {8, 8});
  EXPECT_EQ(peak.at_peak[Category::data], up(images * 4) + up(images * 6 * 4));
  EXPECT_EQ(predict_denoiser(pipeline_named("sd-1.5"), half(), images, {8, 8}).at_peak[Category::data], up(images * 4));
}

// Flux, planned only: in a single block x and text are one, then q, k, v, n and the 5 W of what proj_out reads.
TEST(ImagePeaks, OfFluxAreThoseOfASingleBlock) {
  const PipelineSpec& spec = pipeline_named("flux.1-dev");
  const PeakBytes peak = predict_denoiser(spec, half(), 1, {128, 128});
  const std::uint64_t tokens = 4096 + 512, width = 3072, row = tokens * width * 2;
  const std::uint64_t inputs = std::uint64_t(128) * 128 * 16 * 2 + 512 * 4096 * 2 + up(768 * 2);
  const std::uint64_t angles = 2 * tokens * 128 * 4, time = width * 2, modulation = 3 * width * 2;
  EXPECT_EQ(peak.at_peak[Category::activations], 10 * row + inputs + angles + time + modulation);
  EXPECT_EQ(peak.at_peak[Category::parameters], stored(tensors_of(spec.denoiser), 2));
}

// ---- where weights are

TEST(ImagePeaks, AreTheSumOfAllModelsOrOneOfThem) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const std::uint64_t text = stored(tensors_of(spec.text[0]), 2), denoiser = stored(tensors_of(spec.denoiser), 2);
  const std::uint64_t decoder = stored(tensors_of(spec.autoencoder, AutoencoderPart::decoder), 2);
  ImageRun run = half();
  Stages stages = peaks_of(spec, run);
  for (const PeakBytes& peak : {stages.text, stages.denoiser, stages.decoder})
    EXPECT_EQ(peak.at_peak[Category::parameters], text + denoiser + decoder);
  run.residency = Residency::model;
  stages = peaks_of(spec, run);
  EXPECT_EQ(stages.text.at_peak[Category::parameters], text);
  EXPECT_EQ(stages.denoiser.at_peak[Category::parameters], denoiser);
  EXPECT_EQ(stages.decoder.at_peak[Category::parameters], decoder);
  EXPECT_EQ(stages.whole.total(), stages.denoiser.total());
  EXPECT_EQ(cost_of(spec, run).host.pinned[Category::parameters], text + denoiser + decoder);
}

// SD 1.5's largest block is a residual block at the lowest level, of 1,280 channels and as many that waited: with few pixels
// that is the peak. With many it is a transformer's at full resolution, which is small.
TEST(ImagePeaks, LayerByLayerHaveABlocksWeights) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const auto weights_of = [&](const char* block) {
    std::uint64_t bytes = 0;
    for (const TensorOf& tensor : tensors_of(spec.denoiser))
      if (tensor.name.starts_with(block)) bytes += up(tensor.elements() * 2);
    return bytes;
  };
  ImageRun run = half();
  run.residency = Residency::layer;
  EXPECT_EQ(predict_denoiser(spec, run, 2, {64, 64}).at_peak[Category::parameters],
            weights_of("up_blocks.0.resnets.0."));
  EXPECT_EQ(predict_denoiser(spec, run, 8, {64, 64}).at_peak[Category::parameters],
            weights_of("down_blocks.0.attentions.1."));
}

// ---- guidance

TEST(ImagePeaks, InTwoPassesHaveHalfOfTheActivations) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  ImageRun run = half();
  const PeakBytes one = peaks_of(spec, run).denoiser;
  run.guidance_passes = 2;
  const PeakBytes two = peaks_of(spec, run).denoiser;
  const std::uint64_t map = std::uint64_t(64) * 64 * 320 * 2, latents = 64 * 64 * 4 * 2, text = 2 * 77 * 768 * 2;
  // In one pass beside the MLP: latents, the same twice, the text, the time of two images; in two: latents, the first
  // prediction, the text, the time of one.
  EXPECT_EQ(one.at_peak[Category::activations], 32 * map + 3 * latents + up(text) + up(2 * 1280 * 2));
  EXPECT_EQ(two.at_peak[Category::activations], 16 * map + 2 * latents + up(text) + up(1280 * 2));
  EXPECT_EQ(cost_of(spec, run).multiply_adds, cost_of(spec, half()).multiply_adds);
  EXPECT_GT(cost_of(spec, run).weight_bytes, cost_of(spec, half()).weight_bytes);
}

// ---- fewer bits

TEST(ImagePeaks, OfFewerBitsHaveTheCodesAndRoomForAPart) {
  const PipelineSpec& spec = pipeline_named("flux.1-dev");
  ImageRun run = half();
  run.residency = Residency::model;
  for (const auto& [bits, scheme] : {std::pair(8u, quantised::Scheme::int8_row), {4u, quantised::Scheme::nf4}}) {
    run.denoiser_bits = bits;
    const PeakBytes peak = predict_denoiser(spec, run, 1, {128, 128});
    std::uint64_t bytes = 0;
    for (const TensorOf& tensor : tensors_of(spec.denoiser)) {
      if (!is_linear(tensor)) {
        bytes += up(tensor.elements() * 2);
        continue;
      }
      std::uint64_t of_matrix = 0;
      for (const quantised::Part& part : quantised::parts_of({.scheme = scheme}, tensor.shape[0], tensor.elements()))
        of_matrix += (part.bytes() + 15) / 16 * 16;
      bytes += up(of_matrix);
    }
    EXPECT_EQ(peak.at_peak[Category::parameters], bytes) << bits;
    // The largest matrix is norm1's of a double block, [18432, 3072].
    EXPECT_EQ(peak.at_peak[Category::workspace], std::uint64_t(18432) * 3072 / 8 * 2) << bits;
  }
}

// Small models: then pieces of the largest matrix, while it is encoded, are more than a pass needs.
TEST(ImagePeaks, OfFewerBitsCountWhatLoadingNeeds) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  ImageRun run = half();
  run.residency = Residency::layer;
  run.denoiser_bits = 4;
  const PeakBytes small = predict_denoiser(spec, run, 1, {8, 8});
  EXPECT_GE(small.total(), quantised::loading_bytes({.scheme = quantised::Scheme::nf4}, 10240, 1280).total());
}

// ---- several encoders

TEST(ImagePeaks, OfTwoEncodersHoldBothTextsOnlyWhileTheyAreJoined) {
  const PipelineSpec& spec = pipeline_named("sdxl");
  ImageRun run = half();
  run.residency = Residency::model;
  const Stages stages = peaks_of(spec, run);
  // The second encoder is the larger one; the first one's rows wait meanwhile.
  const std::uint64_t rows = 2 * 77, first = up(rows * 768 * 2);
  EXPECT_EQ(stages.text.total(), predict_text_encoder(spec.text[1], run, 2).total() + first);
}

// ---- what cannot be

TEST(ImagePeaks, RefuseWhatCannotBe) {
  const auto refuses = [](const char* name, const ImageRun& run, const char* said) {
    try {
      (void)peaks_of(pipeline_named(name), run);
      ADD_FAILURE() << said;
    } catch (const std::invalid_argument& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos);
      EXPECT_NE(what.find(said), std::string::npos) << what;
    }
  };
  refuses("sd-1.5", {.size = std::uint64_t(1) << 17}, "65536 pixels");
  refuses("sd-1.5", {.size = 500}, "multiples of 64 pixels");
  refuses("sdxl", {.size = 1000}, "multiples of 32 pixels");
  refuses("flux.1", {.size = 1000}, "multiples of 16 pixels");
  refuses("sd-1.5", {.batch = 0}, "at least one image");
  refuses("sd-1.5", {.dtype = DType::int8}, "fp32, fp16 and bf16");
  refuses("sd-1.5", {.guidance_passes = 3}, "two passes");
  refuses("flux.1", {.guidance_passes = 2}, "one prediction a step");
  refuses("sd-1.5", {.denoiser_bits = 5}, "8 or 4 bits");
}

}  // namespace
