// What diffusers' modules keep alive: against the profiler's record of small ones, and beside published figures.

#include "plan/image/diffusers.h"

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>
#include <string>

#include "read_json.h"

namespace {

using namespace oomlab;
using namespace oomlab::image;
using Offload = DiffusersRun::Offload;
using Attention = DiffusersRun::Attention;

constexpr double kGiB = 1024.0 * 1024 * 1024;

nlohmann::json rows_of(const char* file) {
  std::ifstream stored(std::string(OOMLAB_SHAPES) + "/" + file);
  return oomlab::test::read_json(stored).at("rows");
}

Attention attention_of(const std::string& word) {
  return word == "eager" ? Attention::eager : word == "sliced" ? Attention::sliced : Attention::sdpa;
}

DiffusersRun run_of(const nlohmann::json& row) {
  const std::string offload = row.value("offload", "");
  return {.batch = row.value("batch", std::uint64_t(1)),
          .size = row.value("size", std::uint64_t(0)),
          .dtype = parse_dtype(row.at("dtype").get<std::string>()),
          .offload = offload == "model"        ? Offload::model
                     : offload == "sequential" ? Offload::sequential
                                               : Offload::none,
          .attention = attention_of(row.value("attention", "sdpa")),
          .vae_slicing = row.value("vae_slicing", false),
          .vae_tiling = row.value("vae_tiling", false),
          .denoiser_bits = row.value("denoiser_bits", 0u),
          .text_bits = row.value("text_bits", 0u)};
}

// Within 2 % of the profiler's record; the decoder to a few bytes.
TEST(DiffusersPeaks, AreThoseOfSmallModels) {
  const nlohmann::json rows = rows_of("measured_peaks.json");
  EXPECT_EQ(rows.size(), 8u);
  for (const nlohmann::json& row : rows) {
    DiffusersRun run{.size = row.at("size").get<std::uint64_t>(),
                     .dtype = DType::fp32,
                     .attention = attention_of(row.at("attention").get<std::string>())};
    const bool is_decoder = row.at("part") == "decoder";
    if (is_decoder) run.batch = 2;  // of the U-Net one guided image is two
    const DiffusersPeaks peaks = diffusers_peaks(pipeline_named("digits"), run);
    const double said = double((is_decoder ? peaks.decoder : peaks.denoiser).activations);
    EXPECT_NEAR(said / row.at("bytes").get<double>(), 1, is_decoder ? 0.001 : 0.04) << row.dump();
  }
}

// What is loaded is exact, but for what the allocator rounds up to segments; peaks are live bytes, and no published figure
// is below them.
TEST(DiffusersPeaks, StandBesidePublishedFigures) {
  const nlohmann::json rows = rows_of("published_peaks.json");
  EXPECT_GE(rows.size(), 18u);
  std::size_t out_of_memory = 0;
  for (const nlohmann::json& row : rows) {
    const DiffusersPeaks peaks = diffusers_peaks(pipeline_named(row.at("pipeline").get<std::string>()), run_of(row));
    const bool is_loaded = row.at("of") == "loaded", failed = row.value("out_of_memory", false);
    const double said = double(is_loaded ? peaks.loaded : peaks.whole()) / kGiB,
                 figure = row.at("figure").get<double>();
    SCOPED_TRACE(row.dump());
    EXPECT_NEAR(row.at("said").get<double>(), said, 0.001);
    EXPECT_NEAR(row.at("ratio").get<double>(), said / figure, 0.001);
    if (failed) {
      ++out_of_memory;
      EXPECT_GT(said, figure) << "it ran out of memory";
    } else if (is_loaded) {
      EXPECT_NEAR(said / figure, 1, 0.025);
    } else {
      EXPECT_LT(said, figure) << "live bytes are at most what was measured";
    }
  }
  EXPECT_GE(out_of_memory, 4u);
}

TEST(DiffusersPeaks, OfOffloadAreThoseOfOneComponent) {
  const PipelineSpec& spec = pipeline_named("sdxl");
  const DiffusersPeaks all = diffusers_peaks(spec, {});
  const DiffusersPeaks model = diffusers_peaks(spec, {.offload = Offload::model});
  const DiffusersPeaks sequential = diffusers_peaks(spec, {.offload = Offload::sequential});
  EXPECT_EQ(model.loaded, 0u);
  EXPECT_NEAR(double(model.denoiser.weights), 2567463684.0 * 2, 1e6);
  EXPECT_EQ(all.denoiser.activations, model.denoiser.activations);
  // The largest module of the U-Net is a GEGLU's projection, [10240, 1280], or a convolution of 2,560 to 1,280 channels.
  EXPECT_NEAR(double(sequential.denoiser.weights), 2560.0 * 1280 * 9 * 2, 1e4);
  EXPECT_LT(sequential.whole(), model.whole());
  EXPECT_LT(model.whole(), all.whole());
}

// "enable_vae_tiling" does nothing at the size that the autoencoder was trained at.
TEST(DiffusersPeaks, OfTilingBeginAboveTheTrainedSize) {
  const PipelineSpec& spec = pipeline_named("sdxl");
  const auto decoder = [&](std::uint64_t size, bool tiling) {
    return diffusers_peaks(spec, {.size = size, .vae_tiling = tiling}).decoder.activations;
  };
  EXPECT_EQ(decoder(1024, true), decoder(1024, false));
  EXPECT_LT(decoder(2048, true), decoder(2048, false) / 3);
}

// Slices are matrices in memory, in place of a kernel that has none: since PyTorch 2 they need more.
TEST(DiffusersPeaks, OfSlicedAttentionAreAboveSdpa) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const auto denoiser = [&](Attention attention) {
    return diffusers_peaks(spec, {.attention = attention}).denoiser.activations;
  };
  EXPECT_GT(denoiser(Attention::sliced), 2 * denoiser(Attention::sdpa));
  EXPECT_GT(denoiser(Attention::eager), 2 * denoiser(Attention::sliced));
}

// At the fullest the last but one level is upsampled: 256 channels at 256 and at 512 pixels, what is interpolated and what
// is convolved, beside it in the block's names; and cuDNN's copies of both, where they are assumed.
TEST(DiffusersPeaks, OfTheDecoderMayHaveAnAssumedWorkspace) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const std::uint64_t map = 512ull * 512 * 256 * 2;
  const DiffusersStage without = diffusers_peaks(spec, {}).decoder,
                       with = diffusers_peaks(spec, {.assumed_workspace = true}).decoder;
  EXPECT_EQ(without.workspace, 0u);
  EXPECT_EQ(with.workspace, 2 * map);
  EXPECT_GT(with.total(), without.total() + map);
  EXPECT_EQ(diffusers_peaks(spec, {.assumed_workspace = true}).denoiser.total(),
            diffusers_peaks(spec, {}).denoiser.total());
}

// Slices and tiles wait for the last one, and are put together then.
TEST(DiffusersPeaks, OfSlicesHoldTheImagesThatAreDone) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  const std::uint64_t pixels = 512ull * 512 * 3 * 2;
  const auto decoder = [&](std::uint64_t batch, bool sliced) {
    return diffusers_peaks(spec, {.batch = batch, .vae_slicing = sliced}).decoder.activations;
  };
  EXPECT_EQ(decoder(1, true), decoder(1, false));
  EXPECT_EQ(decoder(3, true), decoder(1, false) + 3 * pixels);
  EXPECT_EQ(decoder(500, true), 2 * 500 * pixels);
}

TEST(DiffusersPeaks, OfSdxlDecodeInFp32WhereFp16Overflows) {
  const PipelineSpec& spec = pipeline_named("sdxl");
  const DiffusersStage half = diffusers_peaks(spec, {.dtype = DType::bf16}).decoder,
                       single = diffusers_peaks(spec, {}).decoder,
                       mended = diffusers_peaks(spec, {.vae_fp16 = true}).decoder;
  EXPECT_EQ(mended.total(), half.total());
  EXPECT_EQ(single.activations, 2 * half.activations);
  EXPECT_NEAR(double(single.weights - half.weights), 2 * 83653863.0, 1e5);
  EXPECT_FALSE(is_upcast(pipeline_named("sd-1.5"), DType::fp16));
}

// Guidance in two passes: half of the images at a time, and one more prediction.
TEST(DiffusersPeaks, OfTwoPassesAreThoseOfHalfTheImages) {
  const PipelineSpec& spec = pipeline_named("sdxl");
  const auto denoiser = [&](std::uint64_t batch, unsigned passes) {
    return diffusers_peaks(spec, {.batch = batch, .guidance_passes = passes}).denoiser.activations;
  };
  const std::uint64_t latents = 128ull * 128 * 4 * 2, text = 77ull * 2048 * 2;
  EXPECT_LT(denoiser(2, 2), denoiser(2, 1));
  // Beside one pass of as many images: one image's latents, two images' prediction; and the text of both passes.
  EXPECT_EQ(denoiser(2, 2), denoiser(1, 1) + 3 * latents + 2 * text);
}

TEST(DiffusersCosts, AreTheWeightsOverTheBus) {
  const PipelineSpec& spec = pipeline_named("sdxl");
  const DiffusersCost none = diffusers_cost(spec, {}), model = diffusers_cost(spec, {.offload = Offload::model});
  EXPECT_EQ(none.host, 0u);
  EXPECT_EQ(none.bus_bytes, 0);
  EXPECT_EQ(model.host, diffusers_peaks(spec, {}).loaded);
  EXPECT_EQ(model.bus_bytes, 2.0 * double(model.host));  // there and back
  const auto sequential = [&](DiffusersRun run) {
    run.offload = Offload::sequential;
    return diffusers_cost(spec, run).bus_bytes;
  };
  const double step = sequential({.steps = 2}) - sequential({.steps = 1});
  EXPECT_NEAR(step, 2567463684.0 * 2, 1e6);
  EXPECT_NEAR(sequential({.steps = 1, .guidance_passes = 2}) - sequential({.steps = 1}), step, 1);
  const double slices = sequential({.batch = 3, .steps = 1, .vae_slicing = true}) - sequential({.steps = 1});
  EXPECT_NEAR(slices, 2 * double(parameters(tensors_of(spec.autoencoder, AutoencoderPart::decoder))) * 4, 1e5);
  // 256 latents in tiles of 128 that begin every 96: three on a side.
  const double tiles =
      sequential({.size = 2048, .steps = 1, .vae_tiling = true}) - sequential({.size = 2048, .steps = 1});
  EXPECT_NEAR(tiles, 4 * slices, 1e5);
}

TEST(DiffusersPeaks, CountWhatDoesNotFit64Bits) {
  EXPECT_THROW(diffusers_peaks(pipeline_named("sdxl"), {.batch = 65536, .size = 65536, .attention = Attention::eager}),
               std::length_error);
}

TEST(DiffusersPeaks, RefuseWhatCannotBe) {
  EXPECT_THROW(diffusers_peaks(pipeline_named("flux.1-dev"), {.guidance_passes = 2}), std::invalid_argument);
  EXPECT_THROW(diffusers_peaks(pipeline_named("sdxl"), {.guidance_passes = 3}), std::invalid_argument);

  EXPECT_THROW(diffusers_peaks(pipeline_named("sdxl"), {.size = 1000}), std::invalid_argument);
  EXPECT_THROW(diffusers_peaks(pipeline_named("sdxl"), {.batch = 0}), std::invalid_argument);
  EXPECT_THROW(diffusers_peaks(pipeline_named("sdxl"), {.denoiser_bits = 3}), std::invalid_argument);
}

}  // namespace
