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

TEST(DiffusersPeaks, RefuseWhatCannotBe) {
  EXPECT_THROW(diffusers_peaks(pipeline_named("sdxl"), {.size = 1000}), std::invalid_argument);
  EXPECT_THROW(diffusers_peaks(pipeline_named("sdxl"), {.batch = 0}), std::invalid_argument);
  EXPECT_THROW(diffusers_peaks(pipeline_named("sdxl"), {.denoiser_bits = 3}), std::invalid_argument);
}

}  // namespace
