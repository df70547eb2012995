// The sampler against its formulas, ways to save memory against the whole pipeline, tiles against plain loops, and whether a
// generated digit is read as what it was named.

#include <gtest/gtest.h>

#include <cstdlib>

#include "claims.h"

namespace {

using namespace oomlab;
using namespace oomlab::image_generation;

template <class Body>
void on_device(Body body) {
  Ledger ledger;
  with_context({}, kUnlimited, ledger, [&](Context& context) { body(context); });
}
template <class T>
std::vector<float> floats_of(Context& context, const DeviceBuffer<T>& buffer) {
  std::vector<T> values(buffer.size());
  copy(context, buffer.data(), values.data(), values.size());
  context.synchronize();
  return {values.begin(), values.end()};
}
DeviceBuffer<float> on_device(Context& context, const std::vector<float>& values) {
  DeviceBuffer<float> buffer = context.buffer<float>(values.size(), Category::activations, "values");
  copy(context, values.data(), buffer.data(), values.size());
  context.synchronize();
  return buffer;
}
std::vector<float> generated(const PipelineSpec& spec, const Run& run) {
  std::vector<float> images;
  on_device([&](Context& context) {
    images =
        floats_of(context, Pipeline<float>(context, spec, run, weights_of(spec)).generate(wishes_of(run.batch, 3)));
  });
  return images;
}

// Three levels, a level without attention, colours, a decoder that changes its channels twice.
PipelineSpec small_spec() {
  return {
      .name = "small",
      .title = "small",
      .text =
          {{.name = "text_encoder", .vocabulary = 30, .positions = 6, .width = 12, .layers = 1, .heads = 3, .mlp = 16}},
      .denoiser = UNetSpec{.channels = {8, 8, 16},
                           .transformers = {1, 1, 0},
                           .heads = {2, 2, 2},
                           .layers_per_block = 1,
                           .context = 12,
                           .groups = 4},
      .autoencoder = {.channels = {8, 8, 16}, .layers_per_block = 1, .groups = 4, .scaling = 0.5},
      .size = 32,
      .steps = 2,
      .guidance = 3};
}

// "Trailing" spacing (Lin et al., 2024).
TEST(Sampler, BeginsWithTheLastStepOfNoise) {
  std::vector<float> timesteps;
  for (const SamplerStep& step : ddim_steps(8, 1)) timesteps.push_back(step.timestep);
  EXPECT_EQ(timesteps, (std::vector<float>{999, 874, 749, 624, 499, 374, 249, 124}));
  EXPECT_THROW(ddim_steps(0, 1), std::invalid_argument);
  EXPECT_THROW(ddim_steps(1001, 1), std::invalid_argument);
}

// Who is told the noise that is really there gets the image that is really there, after however many steps.
TEST(Sampler, EndsWithTheImageWhereThePredictionIsRight) {
  constexpr double kImage = 0.7, kNoise = -1.3, kScaling = 0.4;
  const std::vector<double> bars = alpha_bars();
  for (const std::size_t steps : {1, 3, 8, 50}) {
    double x = std::sqrt(bars[999]) * kImage + std::sqrt(1 - bars[999]) * kNoise;
    for (const SamplerStep& step : ddim_steps(steps, kScaling)) x = step.keep * x + step.add * kNoise;
    EXPECT_NEAR(x, kImage / kScaling, 1e-9) << steps;
  }
}

TEST(Sampler, NoiseIsNormalAndAnotherForEachImage) {
  constexpr std::size_t kCount = 1 << 16;
  const std::vector<float> noise = first_noise(1, 0, kCount);
  double mean = 0, square = 0, beyond = 0;
  for (const float n : noise) {
    mean += n / double(kCount);
    square += double(n) * n / double(kCount);
    beyond += std::abs(n) > 1.96;
  }
  EXPECT_NEAR(mean, 0, 0.02);
  EXPECT_NEAR(square, 1, 0.02);
  EXPECT_NEAR(beyond / double(kCount), 0.05, 0.005);
  EXPECT_NE(first_noise(1, 1, 4), first_noise(1, 0, 4));
  EXPECT_NE(first_noise(2, 0, 4), first_noise(1, 0, 4));
  EXPECT_EQ(first_noise(1, 0, 4), std::vector<float>(noise.begin(), noise.begin() + 4));
}

TEST(Sampler, AStepIsItsFormula) {
  const SamplerStep step{.timestep = 999, .keep = 1.5, .add = -0.25};
  std::vector<float> x, named, without;
  for (int i = 0; i < 1029; ++i) {
    x.push_back(float(i % 7) - 3);
    named.push_back(float(i % 5) - 2);
    without.push_back(float(i % 3) - 1);
  }
  for (const bool guided : {true, false})
    on_device([&](Context& context) {
      DeviceBuffer<float> y = on_device(context, x);
      const DeviceBuffer<float> with = on_device(context, named), none = on_device(context, without);
      ddim_step<float>(context, y.data(), with.data(), guided ? none.data() : nullptr, x.size(), 3, step);
      const std::vector<float> stepped = floats_of(context, y);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float noise = guided ? without[i] + 3 * (named[i] - without[i]) : named[i];
        ASSERT_EQ(stepped[i], 1.5f * x[i] - 0.25f * noise) << i;
      }
    });
}

TEST(Words, AreLettersAsTokens) {
  EXPECT_EQ(tokens_of("six", 5), (std::vector<int>{19, 9, 24, 0, 0}));
  EXPECT_THROW(tokens_of("sixth6", 8), std::invalid_argument);
  EXPECT_THROW(tokens_of("sixteen", 6), std::invalid_argument);
}

constexpr Run kWhole{.batch = 2};
Run with(auto change) {
  Run run = kWhole;
  change(run);
  return run;
}
struct Way {
  const char* name;
  Run run;
};
void PrintTo(const Way& way, std::ostream* to) { *to << way.name; }
class Ways : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(
    Same, Ways,
    ::testing::Values(Way{"ByModel", with([](Run& r) { r.residency = Residency::model; })},
                      Way{"ByLayer", with([](Run& r) { r.residency = Residency::layer; })},
                      Way{"TwoPasses", with([](Run& r) { r.guidance_passes = 2; })},
                      Way{"TiledAttention", with([](Run& r) { r.attention = PixelAttention::tiled; })},
                      Way{"FusedAttention", with([](Run& r) { r.attention = PixelAttention::fused; })},
                      Way{"ByImages", with([](Run& r) { r.decoder = DecoderCut::images; })},
                      Way{"Strips", with([](Run& r) { r.decoder = DecoderCut::halo; })},
                      Way{"StripsOfOneRow", with([](Run& r) { r.decoder = DecoderCut::halo, r.tile = 1; })},
                      Way{"UnequalStrips", with([](Run& r) { r.decoder = DecoderCut::halo, r.tile = 5; })},
                      Way{"StripsByLayer", with([](Run& r) {
                            r.decoder = DecoderCut::halo, r.tile = 4, r.residency = Residency::layer;
                          })},
                      Way{"OneTile", with([](Run& r) { r.decoder = DecoderCut::blended, r.tile = 8; })}),
    [](const auto& info) { return info.param.name; });

// But for rounding: products of other numbers of rows may be added up in another order. Where weights come from decides
// nothing.
TEST_P(Ways, MakeTheImagesOfTheWholePipeline) {
  const PipelineSpec spec = small_spec();
  const std::vector<float> whole = generated(spec, kWhole), other = generated(spec, GetParam().run);
  ASSERT_EQ(whole.size(), 2 * 32 * 32 * 3);
  ASSERT_EQ(other.size(), whole.size());
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    largest = std::max(largest, std::abs(double(whole[i])));
    difference = std::max(difference, std::abs(double(whole[i]) - other[i]));
  }
  EXPECT_GT(largest, 0.1);
  EXPECT_LE(difference, 1e-4 * largest);
  const image::Run& run = GetParam().run;
  if (run.residency != Residency::all && run.decoder == DecoderCut::whole) {
    EXPECT_EQ(whole, other);
  }
}

// The decoder's one head may be wider than the fused kernels take.
TEST(Attention, OfWideHeadsIsComputedInTilesWhereItShouldBeFused) {
  PipelineSpec spec = small_spec();
  spec.autoencoder.channels.back() = nn::kFusedDepth + 8;
  const std::vector<float> textbook = generated(spec, {.batch = 1});
  EXPECT_EQ(generated(spec, {.batch = 1, .attention = PixelAttention::fused}).size(), textbook.size());
  EXPECT_LE(difference_of(textbook, generated(spec, {.batch = 1, .attention = PixelAttention::fused})).largest, 1);
}

// With noise of its own: it does not matter in which batch an image is made.
TEST(Batches, AreTheImagesOneByOne) {
  const PipelineSpec spec = small_spec();
  const std::vector<float> both = generated(spec, kWhole);
  std::vector<float> second;
  on_device([&](Context& context) {
    Wishes wishes = wishes_of(2, 3);
    wishes.words.erase(wishes.words.begin());
    wishes.first_image = 1;
    second =
        floats_of(context, Pipeline<float>(context, spec, image::Run{.batch = 1}, weights_of(spec)).generate(wishes));
  });
  ASSERT_EQ(both.size(), 2 * second.size());
  EXPECT_LE(difference_of({both.begin() + std::ptrdiff_t(second.size()), both.end()}, second).largest, 1);
  EXPECT_GT(difference_of({both.begin(), both.begin() + std::ptrdiff_t(second.size())}, second).largest, 10);
}

// A tile knows nothing of the rest of the image.
TEST(Tiles, ThatAreBlendedAreAnotherImage) {
  const PipelineSpec spec = small_spec();
  const image::Run blended = with([](image::Run& r) { r.decoder = DecoderCut::blended; });
  EXPECT_GT(difference_of(generated(spec, kWhole), generated(spec, blended)).largest, 1);
}

TEST(Tiles, AreBlendedWhereTheyOverlap) {
  constexpr std::size_t kSide = 9, kChannels = 2, kRamp = 2;
  on_device([&](Context& context) {
    // What is there where no tile stood before must not matter.
    DeviceBuffer<float> image =
        on_device(context, std::vector<float>(kSide * kSide * kChannels, std::numeric_limits<float>::quiet_NaN()));
    for (const Tile& tile : {Tile{0, 0, 6, 6}, Tile{0, 4, 6, 5}, Tile{4, 0, 5, 6}, Tile{4, 4, 5, 5}}) {
      const float value = tile.top ? 4.0f : tile.left ? 2.0f : 1.0f;
      const DeviceBuffer<float> made =
          on_device(context, std::vector<float>(tile.height * tile.width * kChannels, value));
      blend_tile<float>(context, made.data(), tile, kRamp, image.data(), kSide, kChannels);
    }
    const std::vector<float> blended = floats_of(context, image);
    const auto at = [&](std::size_t y, std::size_t x) { return blended[(y * kSide + x) * kChannels + 1]; };
    EXPECT_EQ(at(0, 3), 1);
    EXPECT_EQ(at(0, 4), 1);    // the second tile's share begins with 0
    EXPECT_EQ(at(0, 5), 1.5);  // and is a half
    EXPECT_EQ(at(0, 6), 2);
    EXPECT_EQ(at(5, 0), 2.5);
    EXPECT_EQ(at(6, 0), 4);
    EXPECT_EQ(at(5, 5), 0.75 * (0.5 * 1.5 + 0.5 * 4) + 0.25 * 4);
    EXPECT_EQ(at(8, 8), 4);
    DeviceBuffer<float> part = context.buffer<float>(2 * 3 * kChannels, Category::activations, "part");
    take_tile<float>(context, image.data(), kSide, kChannels, {4, 3, 2, 3}, part.data());
    const std::vector<float> taken = floats_of(context, part);
    for (std::size_t y = 0; y < 2; ++y)
      for (std::size_t x = 0; x < 3; ++x) EXPECT_EQ(taken[(y * 3 + x) * kChannels + 1], at(4 + y, 3 + x));
  });
}

// What the verdict on them says.
TEST(Tiles, SaveMostWhereWeightsComeLayerByLayer) {
  EXPECT_LT(saved_by_tiles(Residency::all).value(), 0.5);
  EXPECT_LT(saved_by_tiles(Residency::model).value(), 0.5);
  EXPECT_GE(saved_by_tiles(Residency::layer).value(), 0.5);
}

TEST(Images, AreAFileOfBytes) {
  const Sheet sheet{2, 1, {{-1, 1, 0, 2, -3, 0.5f, -0.5f, 1}, {1, 1, 1, 1, -1, -1, -1, -1}}};
  const std::string file = netpbm_of(sheet), head = "P5\n4 4\n255\n";
  ASSERT_EQ(file.substr(0, head.size()), head);
  const std::string bytes = file.substr(head.size());
  const std::vector<int> expected{0, 255, 0, 191, 128, 255, 64, 255, 255, 255, 0, 0, 255, 255, 0, 0};
  ASSERT_EQ(bytes.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(int(static_cast<unsigned char>(bytes[i])), expected[i]) << i;
  EXPECT_THROW(netpbm_of({2, 2, {}}), std::invalid_argument);
}

// At least nine in ten are read as named, by a classifier that has seen no generated one: of 40 by day, of 200 where
// OOMLAB_DIGITS is set.
TEST(Digits, AreReadAsNamed) {
  const std::size_t images = std::getenv("OOMLAB_DIGITS") ? 200 : 40;
  const PipelineSpec& spec = pipeline_named("digits");
  on_device([&](Context& context) {
    Pipeline<float> pipeline(context, spec, {.batch = images}, weights_of(spec));
    const std::vector<float> made = floats_of(context, pipeline.generate(wishes_of(images, 1)));
    EXPECT_GE(read_as_named(context, made), images * 9 / 10);
  });
}

}  // namespace
