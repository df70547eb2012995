// Batches on the device: gathered, resized, scaled.

#include "data/device_dataset.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "cuda/launch.h"
#include "files.h"

namespace oomlab::test {
namespace {

class Batches : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }

  CudaResource resource;
  Ledger ledger;
  Context context{resource, ledger};

  struct Result {
    std::vector<float> pixels;
    std::vector<int> labels;
  };
  // `moved` values behind an aligned address.
  Result batch(const data::DeviceDataset& dataset, std::size_t first, std::size_t size, std::size_t width,
               std::size_t moved = 0) {
    auto out = context.buffer<float>(size * width + moved, Category::activations, "out");
    auto labels = context.buffer<int>(size, Category::data, "labels");
    const std::size_t before = ledger.live_bytes();
    ledger.reset_peak();
    dataset.batch(context, first, size, width, out.data() + moved, labels.data());
    EXPECT_EQ(ledger.peak_bytes(), before) << "a batch allocates nothing";
    Result result{std::vector<float>(size * width), std::vector<int>(size)};
    CUDA_CHECK(cudaMemcpyAsync(result.pixels.data(), out.data() + moved, result.pixels.size() * sizeof(float),
                               cudaMemcpyDeviceToHost, context.stream()));
    CUDA_CHECK(
        cudaMemcpyAsync(result.labels.data(), labels.data(), labels.bytes(), cudaMemcpyDeviceToHost, context.stream()));
    CUDA_CHECK(cudaStreamSynchronize(context.stream()));
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Batches, ::testing::ValuesIn(kDistinctBlockThreads));

double resized(const data::Dataset& d, std::size_t image, std::size_t y, std::size_t x, data::ImageShape to) {
  const auto at = [](std::size_t i, std::size_t from, std::size_t size) {
    return std::min(std::max((double(i) + 0.5) * double(from) / double(size) - 0.5, 0.0), double(from) - 1);
  };
  const double fy = at(y, d.height, to.height), fx = at(x, d.width, to.width);
  const auto pixel = [&](std::size_t r, std::size_t c) {
    return double(d.images[(image * d.height + std::min(r, d.height - 1)) * d.width + std::min(c, d.width - 1)]);
  };
  const auto r = static_cast<std::size_t>(fy), c = static_cast<std::size_t>(fx);
  const double wy = fy - double(r), wx = fx - double(c);
  return ((pixel(r, c) * (1 - wy) + pixel(r + 1, c) * wy) * (1 - wx) +
          (pixel(r, c + 1) * (1 - wy) + pixel(r + 1, c + 1) * wy) * wx) /
         d.white;
}

TEST_P(Batches, SameSizeIsExact) {
  const data::Dataset d = data::digits();
  const data::DeviceDataset dataset(context, d);
  EXPECT_EQ(ledger.live_by_category()[Category::data], data::device_bytes(d));
  EXPECT_EQ(data::device_bytes(d), 115200u + 2048u);
  const Result result = batch(dataset, 1790, 20, 64);  // over the end, and on from the start
  for (std::size_t i = 0; i < 20; ++i) {
    const std::size_t image = (1790 + i) % 1797;
    EXPECT_EQ(result.labels[i], d.labels[image]);
    for (std::size_t p = 0; p < 64; ++p) ASSERT_EQ(result.pixels[i * 64 + p], float(d.images[image * 64 + p]) / 16);
  }
}

// 4,100 pixels are a pack for each of 1,024 threads, and one more; seven fill no whole number of them.
TEST_P(Batches, InPacksAndOneByOne) {
  for (const data::Dataset& d : {counting_dataset(3, 50, 82, 3), counting_dataset(3, 1, 7, 3)})
    for (const std::size_t moved : {0, 1}) {
      const data::DeviceDataset dataset(context, d);
      const Result result = batch(dataset, 2, 4, d.pixels(), moved);
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t image = (2 + i) % 3;
        EXPECT_EQ(result.labels[i], d.labels[image]);
        for (std::size_t p = 0; p < d.pixels(); ++p)
          ASSERT_EQ(result.pixels[i * d.pixels() + p], float(d.images[image * d.pixels() + p]) * (1.0f / d.white));
      }
    }
}

TEST_P(Batches, Resized) {
  for (const data::Dataset& d :
       {data::digits(), counting_dataset(5, 28, 28, 3), counting_dataset(3, 1, 9, 3), counting_dataset(2, 5, 1, 2)}) {
    const data::DeviceDataset dataset(context, d);
    EXPECT_EQ(ledger.live_by_category()[Category::data], data::device_bytes(d));
    for (const std::size_t width :
         {1, 2, 7, 64, 100, 512, 784, 1000, 1021}) {  // the last one is one line, for 1,024 threads
      const data::ImageShape to = data::shape_for_width(width);
      const Result result = batch(dataset, 1, 4, width);
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t image = (1 + i) % d.count;
        EXPECT_EQ(result.labels[i], d.labels[image]);
        for (std::size_t p = 0; p < width; ++p)
          ASSERT_NEAR(result.pixels[i * width + p], resized(d, image, p / to.width, p % to.width, to), 2e-5)
              << width << " at " << p;
      }
    }
  }
}

// A window of the resized picture, the same place in every channel, chosen by the sample's number alone.
TEST_P(Batches, AWindowInEveryChannel) {
  const data::Dataset d = counting_dataset(5, 6, 4, 3);
  const data::DeviceDataset dataset(context, d);
  const data::View view{12, 9, 7, 8, 9};
  constexpr std::size_t kSamples = 12, kPixels = 7 * 8;
  const auto seen = [&](std::size_t first, std::size_t samples, std::size_t channels) {
    auto out = context.buffer<float>(samples * kPixels * channels, Category::activations, "out");
    auto labels = context.buffer<int>(samples, Category::data, "labels");
    dataset.batch(context, first, samples, view, channels, out.data(), labels.data());
    std::vector<float> pixels(out.size());
    std::vector<int> numbers(samples);
    CUDA_CHECK(cudaMemcpyAsync(pixels.data(), out.data(), out.bytes(), cudaMemcpyDeviceToHost, context.stream()));
    CUDA_CHECK(
        cudaMemcpyAsync(numbers.data(), labels.data(), labels.bytes(), cudaMemcpyDeviceToHost, context.stream()));
    CUDA_CHECK(cudaStreamSynchronize(context.stream()));
    for (std::size_t i = 0; i < samples; ++i) EXPECT_EQ(numbers[i], d.labels[(first + i) % d.count]);
    return pixels;
  };
  const std::vector<float> grey = seen(0, kSamples, 1), colour = seen(0, kSamples, 3);
  std::set<std::pair<std::size_t, std::size_t>> places;
  for (std::size_t i = 0; i < kSamples; ++i) {
    std::size_t matches = 0;
    for (std::size_t top = 0; top <= 12 - 7; ++top)
      for (std::size_t left = 0; left <= 9 - 8; ++left) {
        double most = 0;
        for (std::size_t p = 0; p < kPixels; ++p)
          most = std::max(
              most, std::abs(grey[i * kPixels + p] - resized(d, i % d.count, top + p / 8, left + p % 8, {12, 9})));
        if (most > 2e-5) continue;
        ++matches;
        places.insert({top, left});
      }
    EXPECT_EQ(matches, 1u) << i;
  }
  EXPECT_GT(places.size(), 3u) << "windows lie here and there";
  for (std::size_t i = 0; i < colour.size(); ++i) ASSERT_EQ(colour[i], grey[i / 3]);
  const std::vector<float> later = seen(5, 7, 1);
  EXPECT_TRUE(std::equal(later.begin(), later.end(), grey.begin() + 5 * kPixels)) << "whatever batch it is in";
  EXPECT_THROW(dataset.batch(context, 0, 1, data::View{8, 8, 9, 8}, 1, nullptr, nullptr), std::invalid_argument);
}

TEST(ImageShapes, AreTheMostSquare) {
  const auto shape = [](std::size_t w) {
    const auto s = data::shape_for_width(w);
    return std::pair(s.height, s.width);
  };
  EXPECT_EQ(shape(64), std::pair(std::size_t(8), std::size_t(8)));
  EXPECT_EQ(shape(512), std::pair(std::size_t(16), std::size_t(32)));
  EXPECT_EQ(shape(1), std::pair(std::size_t(1), std::size_t(1)));
  EXPECT_EQ(shape(7), std::pair(std::size_t(1), std::size_t(7)));
  EXPECT_EQ(shape(784), std::pair(std::size_t(28), std::size_t(28)));
  EXPECT_EQ(shape(512'000), std::pair(std::size_t(640), std::size_t(800)));
}

TEST(DeviceDatasets, RefuseWhatDoesNotFitTogether) {
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  const std::size_t before = ledger.live_bytes();
  data::Dataset d = counting_dataset(4, 2, 2, 3);
  d.labels[2] = 3;
  EXPECT_THROW(data::DeviceDataset(context, d), data::DataError);
  d = counting_dataset(4, 2, 2, 3);
  d.images.pop_back();
  EXPECT_THROW(data::DeviceDataset(context, d), data::DataError);
  const data::DeviceDataset empty(context, counting_dataset(0, 2, 2, 3));
  EXPECT_THROW(empty.batch(context, 0, 1, 4, nullptr, nullptr), data::DataError);
  EXPECT_EQ(ledger.live_bytes(), before);
}

}  // namespace
}  // namespace oomlab::test
