// Tiles give what the whole image gives, in the bytes that their closed form says; and peaks lie on a line.

#include "tiles.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "claims.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/values.h"

namespace {

using namespace oomlab;
using namespace oomlab::input_size;

struct Case {
  const char* model;
  std::size_t height, width, batch, tiles;
};
// Tiles that do not divide the last layer, more of them than it has pixels, strides that do not divide the image, a
// pooled stem, bottlenecks, depthwise convolutions.
const Case kCases[] = {{"resnet:1-3", 12, 9, 2, 4},  {"resnet:2-5", 33, 20, 1, 3}, {"resnet:3-4", 40, 51, 2, 2},
                       {"resnet:3-4", 64, 64, 1, 9}, {"resnet18", 40, 51, 1, 3},   {"resnet50", 64, 90, 1, 2},
                       {"mobilenet:5", 40, 33, 2, 3}};

std::vector<float> read(Context& context, const DeviceBuffer<float>& buffer) {
  std::vector<float> values(buffer.size());
  CUDA_CHECK(cudaMemcpyAsync(values.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
  return values;
}

// A model whose norms do something.
void stir(Context& context, nn::Network& model) {
  std::uint64_t stream = 100;
  for (const nn::Parameter& p : model.statistics())
    if (p.name.ends_with("mean"))
      nn::fill_uniform(context, p.value, p.count, 0.3f, 1, ++stream);
    else
      nn::fill(context, p.value, p.count, 0.7f);
}

class Tiles : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, Tiles, ::testing::ValuesIn(kCases), [](const auto& info) {
  const Case& c = info.param;
  std::string name = std::string(c.model) + "_" + std::to_string(c.height) + "x" + std::to_string(c.width);
  for (char& letter : name)
    if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
  return name;
});

TEST_P(Tiles, GiveTheSameLogitsInThePredictedBytes) {
  if (OOMLAB_ROUNDS < 10 && GetParam().tiles > 4) GTEST_SKIP() << "many tiles are the same kernels, more often";
  const auto [name, height, width, batch, tiles] = GetParam();
  const nn::NetworkSpec spec = nn::parse_network(name);
  const nn::InputSize size{height, width};
  for (const nn::ConvolutionWay way :
       {nn::ConvolutionWay::im2col, nn::ConvolutionWay::tiled, nn::ConvolutionWay::direct}) {
    if (way == nn::ConvolutionWay::direct && std::string(name) == "resnet50") continue;  // slow, and nothing new
    // The small networks go through the same kernels.
    if (OOMLAB_ROUNDS < 10 && way != nn::ConvolutionWay::tiled && !spec.name.starts_with("resnet:")) continue;
    std::vector<float> logits[2];
    for (const bool by_tiles : {false, true}) {
      CudaResource resource;
      Ledger ledger;
      {
        Context context(resource, ledger, 1024);
        nn::Network model(context, spec, 7, /*with_gradients=*/false);
        stir(context, model);
        auto input = context.buffer<float>(batch * height * width * 3, Category::activations, "input");
        nn::fill_uniform(context, input.data(), input.size(), 1.0f, 3, 4);
        const auto out = by_tiles ? TiledInference(context, model, {way}, batch, size).run(std::move(input), tiles)
                                  : model.forward(context, std::move(input), batch, size, {way});
        logits[by_tiles] = read(context, out);
      }
      const PeakBytes predicted = by_tiles ? predict_tiled_inference(spec, batch, size, tiles, {way})
                                           : nn::predict_inference(spec, batch, size, {way});
      EXPECT_EQ(without_workspace(ledger.peak_by_category(), 1024), predicted.at_peak) << name_of(way) << by_tiles;
    }
    double most = 0;
    for (const float v : logits[0]) most = std::max(most, std::abs(double(v)));
    ASSERT_GT(most, 0.01);
    for (std::size_t i = 0; i < logits[0].size(); ++i)
      ASSERT_LE(std::abs(double(logits[0][i]) - logits[1][i]), 1e-6 * most) << name_of(way) << " logit " << i;
  }
}

// With a halo that is too narrow they would not: an image is more than its tiles.
TEST(TiledInference, StatisticsOfATileAreOthers) {
  const nn::NetworkSpec spec = nn::parse_network("resnet:2-6");
  std::vector<float> logits[2];
  for (const std::size_t tiles : {1, 2}) {
    CudaResource resource;
    Ledger ledger;
    Context context(resource, ledger, 1024);
    nn::Network model(context, spec, 7, /*with_gradients=*/false);
    auto input = context.buffer<float>(32 * 32 * 3, Category::activations, "input");
    nn::fill_uniform(context, input.data(), input.size(), 1.0f, 3, 4);
    logits[tiles - 1] = read(
        context, TiledInference(context, model, {}, 1, {32, 32}, Statistics::of_tile).run(std::move(input), tiles));
  }
  EXPECT_NE(logits[0], logits[1]);
}

TEST(TiledInference, AnInputOfAnotherSizeIsRefused) {
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger, 1024);
  const nn::NetworkSpec spec = nn::parse_network("resnet:2-6");
  nn::Network model(context, spec, 1, /*with_gradients=*/false);
  const auto input = [&] { return context.buffer<float>(32 * 32 * 3, Category::data, "input"); };
  EXPECT_THROW((void)TiledInference(context, model, {}, 1, {64, 64}).run(input(), 2), std::invalid_argument);
  EXPECT_THROW((void)model.forward(context, input(), 1, {64, 64}), std::invalid_argument);
}

TEST(TiledInference, NetworksWithOtherLayersAreRefused) {
  EXPECT_THROW((void)tiled_layers(nn::parse_network("unet:2-3")), std::invalid_argument);
  EXPECT_THROW((void)tiled_layers(nn::parse_network("mobilenet-v3-large")), std::invalid_argument);
}

TEST(LargestDifference, NotANumberIsSeen) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(largest_difference({1, -4}, {1, -3}), 0.25);
  EXPECT_FALSE(largest_difference({1, 2}, {kNan, 2}).value() <= 1e-6);
  EXPECT_FALSE(largest_difference({kNan, kNan}, {kNan, kNan}).value() <= 1e-6);
  EXPECT_FALSE(largest_difference({1}, {}).has_value());
}

// What is recomputed is what the forward pass had: the same weights after three steps, bit by bit.
TEST(RecomputedNorms, GiveTheSameBits) {
  std::uint64_t fingerprints[2];
  const data::Dataset dataset = data::digits();
  for (const bool recompute : {false, true}) {
    CudaResource resource;
    Ledger ledger;
    Context context(resource, ledger, 1024);
    const Way way{"",
                  nn::parse_network("resnet:2-6"),
                  data::whole(16),
                  {.way = nn::ConvolutionWay::tiled, .recompute_norms = recompute}};
    ViewTraining training(context, dataset, way, 5);
    for (int i = 0; i < 3; ++i) training.step();
    fingerprints[recompute] = training.fingerprint();
  }
  EXPECT_EQ(fingerprints[0], fingerprints[1]);
}

TEST(Tiles, PeakFallsWithTheTileUntilTheHaloIsAll) {
  const nn::NetworkSpec spec = nn::parse_network("resnet:3-16");
  const auto peak = [&](std::size_t tiles) {
    return predict_tiled_inference(spec, 1, {1024, 1024}, tiles, {nn::ConvolutionWay::tiled}).total();
  };
  EXPECT_LT(peak(2), peak(1));
  EXPECT_LT(peak(8), peak(2) / 2);
  EXPECT_LT(peak(1), nn::predict_inference(spec, 1, {1024, 1024}, {nn::ConvolutionWay::tiled}).total() * 11 / 10);
}

// peak = fixed + slope · pixels, to the byte but for the granule, where the strides divide the image and the same
// moment is the fullest.
TEST(InputSize, PeaksOfATrainingStepLieOnALine) {
  for (const char* name : {"resnet:3-16", "resnet18", "resnet50"})
    for (const nn::ConvolutionWay way : {nn::ConvolutionWay::im2col, nn::ConvolutionWay::direct}) {
      const nn::NetworkSpec spec = nn::parse_network(name);
      const auto peak = [&](std::size_t side) {
        return double(nn::predict_training(spec, 16, {side, side}, kOptimizer, {way}).total());
      };
      const double slope = (peak(512) - peak(256)) / (512.0 * 512 - 256.0 * 256);
      const double fixed = peak(512) - slope * 512 * 512;
      for (const std::size_t side : {320, 384, 448, 768})
        EXPECT_NEAR(peak(side), fixed + slope * double(side * side), 1e-3 * peak(side)) << name << " " << side;
      const double state = 12.0 * double(spec.parameters());
      EXPECT_NEAR(fixed, state, 0.02 * state + 1e6) << name;
    }
}

}  // namespace
