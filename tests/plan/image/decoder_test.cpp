// The decoder: whole, image by image, in strips, in tiles.

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/image/walk.h"
#include "stored.h"

namespace {

using namespace oomlab;
using namespace oomlab::image;

constexpr std::uint64_t kSide = 512;  // pixels of SD 1.5's images
const AutoencoderSpec& published() { return pipeline_named("sd-1.5").autoencoder; }

std::uint64_t maps(std::uint64_t images, std::uint64_t rows, std::uint64_t channels) {
  return images * rows * kSide * channels * 2;
}

ImageRun cut(DecoderCut decoder, std::uint64_t tile = 0) {
  return {.dtype = DType::fp16, .attention = nn::AttentionForm::fused, .decoder = decoder, .tile = tile};
}

std::uint64_t activations(const ImageRun& run, std::uint64_t images) {
  return predict_decoder(published(), run, images, {kSide / 8, kSide / 8}).at_peak[Category::activations];
}

// The first residual block at full resolution goes from 256 to 128 channels: its input, the same with norm and SiLU, and
// what the first convolution makes.
TEST(ImageDecoder, IsFullestWhereTheResolutionIsFull) {
  for (const std::uint64_t images : {1, 4}) {
    const ImageRun run = cut(DecoderCut::whole);
    EXPECT_EQ(activations(run, images), maps(images, kSide, 256 + 256 + 128));
    const PeakBytes peak = predict_decoder(published(), run, images, {64, 64});
    const nn::ConvolutionShape first = nn::convolution_shape(images, kSide, kSide, 256, 128, 3, 1, 1);
    EXPECT_EQ(peak.at_peak[Category::workspace],
              nn::convolution_workspace(first, nn::ConvolutionWay::tiled, 2).columns);
  }
}

TEST(ImageDecoder, ImageByImageHasAllOutputsAndOneImagesMaps) {
  const std::uint64_t latents = 64 * 64 * 4 * 2;
  EXPECT_EQ(activations(cut(DecoderCut::images), 8), maps(1, kSide, 256 + 256 + 128) + maps(8, kSide, 3) + 8 * latents);
}

// Strips of 8 rows of latents, 64 of pixels. Whole on the device is the input of the first residual block at full
// resolution, 256 channels, beside the norms' statistics, one strip with its halo and what the convolution makes of it.
TEST(ImageDecoder, InStripsHasOneMapAndAStrip) {
  const std::uint64_t latents = 64 * 64 * 4 * 2, statistics = 2 * 512;
  EXPECT_EQ(activations(cut(DecoderCut::halo, 8), 1),
            maps(1, kSide, 256) + maps(1, 66, 256) + maps(1, 64, 128) + maps(1, kSide, 3) + latents + statistics);
  // Strips as high as the image have no halo.
  EXPECT_EQ(activations(cut(DecoderCut::halo, 64), 1),
            maps(1, kSide, 256 + 256 + 128) + maps(1, kSide, 3) + latents + statistics);
}

// Maps wait in pinned memory: of the first residual block at full resolution its input and what is made of it.
TEST(ImageDecoder, InStripsKeepsMapsOnTheHost) {
  ImageRun run = cut(DecoderCut::halo, 8);
  run.batch = 3;
  const Cost cost = cost_of(pipeline_named("sd-1.5"), run);
  EXPECT_EQ(cost.host.pinned[Category::activations], maps(1, kSide, 256 + 128));
  EXPECT_EQ(cost_of(pipeline_named("sd-1.5"), cut(DecoderCut::whole)).host.total(), 0u);
  run.batch = 1;
  EXPECT_EQ(3 * cost_of(pipeline_named("sd-1.5"), run).bus_bytes, cost.bus_bytes);
}

// Tiles of 32 x 32 latents are images of 256 x 256.
TEST(ImageDecoder, InBlendedTilesHasATilesMaps) {
  const std::uint64_t latents = 64 * 64 * 4 * 2, tile = std::uint64_t(256) * 256 * (256 + 256 + 128) * 2;
  EXPECT_EQ(activations(cut(DecoderCut::blended, 32), 1), tile + maps(1, kSide, 3) + latents);
  EXPECT_EQ(activations(cut(DecoderCut::blended), 1), activations(cut(DecoderCut::blended, 32), 1))
      << "half, if silent";
}

TEST(ImageDecoder, CutsCoverTheLatents) {
  for (const std::uint64_t size : {1, 7, 64, 96}) {
    for (const std::uint64_t tile : {1, 3, 8, 32, 64}) {
      std::uint64_t next = 0;
      for (const Span& strip : strips_of(size, tile)) {
        EXPECT_EQ(strip.first, next);
        next += strip.count;
      }
      EXPECT_EQ(next, size);
      next = 0;
      for (const Span& part : blended_tiles_of(size, tile)) {
        EXPECT_LE(part.first, next) << "a gap";
        EXPECT_LE(part.count, tile);
        next = part.first + part.count;
      }
      EXPECT_EQ(next, size);
    }
  }
  // As diffusers has it for 128 latents, tiles of 64 and an overlap of a quarter.
  const std::vector<Span> tiles = blended_tiles_of(128, 64);
  ASSERT_EQ(tiles.size(), 3u);
  EXPECT_EQ(tiles[1].first, 48u);
  EXPECT_EQ(tiles[2].count, 32u);
}

TEST(ImageDecoder, NoCutNeedsMoreThanTheWhole) {
  for (const char* name : kPipelines) {
    ImageRun run{.batch = 2, .dtype = DType::fp16, .attention = nn::AttentionForm::fused};
    const std::uint64_t whole = peaks_of(pipeline_named(name), run).decoder.total();
    std::uint64_t last = whole;
    for (const DecoderCut decoder : {DecoderCut::images, DecoderCut::halo, DecoderCut::blended}) {
      run.decoder = decoder;
      const std::uint64_t peak = peaks_of(pipeline_named(name), run).decoder.total();
      EXPECT_LT(peak, last) << name << ", " << name_of(decoder);
      last = peak;
    }
  }
}

}  // namespace
