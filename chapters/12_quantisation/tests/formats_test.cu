// What is stored of a matrix: its bytes, and how far a weight is from what it was, for weights of every kind.

#include <algorithm>
#include <cmath>
#include <functional>

#include "../../../tests/nn/device.h"
#include "matrix.h"

namespace {

using namespace oomlab;
using namespace oomlab::quantisation;
using namespace oomlab::test;

std::string words(const Format& format) {
  std::string text = name_of(format.scheme);
  if (format.scheme == Scheme::int4) text.append(" ").append(std::to_string(format.group));
  return text;
}

Matrix<float> encoded(Device& device, const Format& format, const std::vector<float>& weights, std::size_t rows) {
  const std::size_t width = weights.size() / rows;
  Matrix<float> matrix(device.context, format, "matrix", rows, width);
  Loading loading(device.context, loading_bytes(format, rows, width));
  matrix.encode(device.context, loading, [&](Context& context, std::size_t first, std::size_t count, float* to) {
    ASSERT_LE(count, piece_of(format, weights.size(), width));
    CUDA_CHECK(
        cudaMemcpyAsync(to, weights.data() + first, count * sizeof(float), cudaMemcpyHostToDevice, context.stream()));
    context.synchronize();
  });
  return matrix;
}
std::vector<float> decoded(Device& device, const Matrix<float>& matrix) {
  auto back = device.upload(std::vector<float>(matrix.count()));
  matrix.decode(device.context, 0, matrix.count(), back.data());
  return device.download(back);
}

class Formats : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }
  Device device;

  template <class V>
  std::vector<V> part(Matrix<float>& matrix, std::size_t p) {
    return device.download(reinterpret_cast<const V*>(matrix.part_data(p)), matrix.layout()[p].count);
  }
  /// Of each weight, half the distance of two neighbours of its code; and the weights, read from the parts as formats.h
  /// says that they lie there.
  struct Stored {
    std::vector<float> weights, half_a_step;
  };
  Stored stored(Matrix<float>& matrix) {
    Stored all;
    const auto half_byte = [](const std::vector<std::uint8_t>& bytes, std::size_t i) {
      const std::uint8_t byte = bytes[i / 64 * 32 + i % 32];
      return i % 64 < 32 ? byte % 16 : byte / 16;
    };
    const std::size_t n = matrix.count();
    if (matrix.format().scheme == Scheme::int4) {
      const auto codes = part<std::uint8_t>(matrix, kCodes), zeros = part<std::uint8_t>(matrix, kSmall);
      const auto scales = part<std::uint16_t>(matrix, kScales);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t g = i / matrix.format().group;
        const int zero = g % 2 ? zeros[g / 2] / 16 : zeros[g / 2] % 16;
        all.weights.push_back(from_bf16(scales[g]) * float(half_byte(codes, i) - zero));
        all.half_a_step.push_back(from_bf16(scales[g]) / 2);
      }
    } else if (matrix.format().scheme == Scheme::nf4) {
      const auto codes = part<std::uint8_t>(matrix, kCodes);
      const auto absmax = part<std::int8_t>(matrix, kSmall);
      const auto scales = part<float>(matrix, kScales), mean = part<float>(matrix, kMean);
      for (std::size_t i = 0; i < n; ++i) {
        const float most = std::max(0.0f, std::fmaf(scales[i / 64 / 256], float(absmax[i / 64]), mean[0]));
        const int q = half_byte(codes, i);
        all.weights.push_back(most * kNf4Code[q]);
        float gap = 0.0f;  // to the neighbour that is further away: the weight may be on either side
        if (q > 0) gap = std::max(gap, kNf4Code[q] - kNf4Code[q - 1]);
        if (q < 15) gap = std::max(gap, kNf4Code[q + 1] - kNf4Code[q]);
        // The absmax itself is a sum, rounded as its largest term is.
        all.half_a_step.push_back(most * gap / 2 + 2e-7f * std::fabs(mean[0]));
      }
    } else {
      const auto codes = part<std::int8_t>(matrix, kCodes);
      const auto scales = part<float>(matrix, kScales);
      for (std::size_t i = 0; i < n; ++i) {
        const float scale = scales[matrix.format().scheme == Scheme::int8_row ? i / matrix.width() : 0];
        all.weights.push_back(scale * float(codes[i]));
        all.half_a_step.push_back(scale / 2);
      }
    }
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Formats, ::testing::ValuesIn(kDistinctBlockThreads));

const Format kFormats[] = {{.scheme = Scheme::int8_tensor},        {.scheme = Scheme::int8_row},
                           {.scheme = Scheme::int4, .group = 128}, {.scheme = Scheme::int4, .group = 4},
                           {.scheme = Scheme::int4, .group = 172}, {.scheme = Scheme::nf4}};

std::vector<float> of_kind(const std::string& kind, std::size_t count) {
  std::vector<float> values = random_floats(count, 7, 0.5f);
  for (std::size_t i = 0; i < count; ++i) {
    if (kind == "zero") values[i] = 0.0f;
    if (kind == "constant") values[i] = -0.3f;
    if (kind == "positive") values[i] = 1.0f + values[i];
    if (kind == "denormal") values[i] *= 1e-41f;
    if (kind == "least") values[i] = i % 3 == 0 ? 1.4e-45f : 0.0f;
    if (kind == "huge") values[i] *= 1e38f;
    if (kind == "of all sizes") values[i] *= std::pow(10.0f, float(i / 64 % 12) - 8.0f);
    if (kind == "outliers" && i % 97 == 5) values[i] = 60.0f;
  }
  return values;
}

TEST_P(Formats, AreOffByHalfAStepAtMost) {
  for (const Format& format : kFormats)
    for (const char* kind :
         {"random", "zero", "constant", "positive", "denormal", "least", "huge", "of all sizes", "outliers"}) {
      SCOPED_TRACE(words(format) + ", " + kind);
      // With 32 rows one scale is enough for the absmax of all blocks, with 96 it is not.
      const std::size_t rows = format.scheme == Scheme::nf4 && kind[0] == 'o' ? 96 : 32;
      const std::vector<float> weights = of_kind(kind, rows * 172);
      Matrix<float> matrix = encoded(device, format, weights, rows);
      const Stored all = stored(matrix);
      double most = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        ASSERT_TRUE(std::isfinite(all.weights[i])) << i;
        const double off = std::fabs(double(all.weights[i]) - weights[i]), half = all.half_a_step[i];
        // A denormal is itself a multiple of 1.4e-45.
        ASSERT_LE(off, half * 1.00001 + 1.5e-45) << i << ": " << weights[i] << " became " << all.weights[i];
        if (half > 0) most = std::max(most, off / half);
      }
      if (std::string(kind) == "random") {
        EXPECT_GT(most, 0.95);  // the steps are no wider than they need be
      }
      EXPECT_EQ(decoded(device, matrix), all.weights);
    }
}

// Weights that lie on the code come back as they were.
TEST_P(Formats, WholeNumbersComeBack) {
  std::vector<float> weights(2 * 256);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = float(int(i * 37 % 255) - 127);
  weights[0] = weights[256] = 127.0f;
  for (const Scheme form : {Scheme::int8_tensor, Scheme::int8_row}) {
    Matrix<float> matrix = encoded(device, {.scheme = form}, weights, 2);
    EXPECT_EQ(decoded(device, matrix), weights);
  }
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.25f * float(int(i % 16) - int(3 + i / 128));
  Matrix<float> matrix = encoded(device, {.scheme = Scheme::int4}, weights, 2);
  EXPECT_EQ(decoded(device, matrix), weights);
}

TEST(Format, IsAllocatedAsPlanned) {
  Device device;
  for (const auto& [rows, width] :
       {std::pair<std::size_t, std::size_t>{1, 1}, {3, 64}, {64, 172}, {344, 64}, {257, 129}}) {
    const auto check = [&](const Format& format) {
      SCOPED_TRACE(words(format) + ", " + std::to_string(rows) + " x " + std::to_string(width));
      const std::size_t before = device.ledger.live_bytes();
      const Matrix<float> matrix(device.context, format, "matrix", rows, width);
      EXPECT_EQ(device.ledger.live_bytes() - before, matrix_bytes(format, rows, width, 4).allocated);
    };
    check({});
    check({.scheme = Scheme::int8_tensor});
    check({.scheme = Scheme::int8_row});
    check({.scheme = Scheme::nf4});
    for (const std::size_t group : {1, 4, 64, 128, 172})
      if (rows * width % group == 0) check({.scheme = Scheme::int4, .group = group});
  }
}

// The published values (bitsandbytes, create_normal_map); and how they come about (Dettmers et al., 2023).
TEST(Nf4, HasThePublishedCode) {
  const double published[] = {-1,       -.6961928, -.5250731, -.3949175, -.2844414, -.1847734, -.0910500, 0,
                              .0795803, .1609302,  .2461123,  .3379152,  .4407098,  .5626170,  .7229568,  1};
  const auto quantile = [](double p) {
    double low = -10, high = 10;
    for (int i = 0; i < 100; ++i) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
    }
    return low;
  };
  std::vector<double> made{0};
  const double offset = (2 - 1.0 / 32 - 1.0 / 30) / 2;
  for (int i = 0; i < 8; ++i) made.push_back(quantile(offset + (0.5 - offset) * i / 8));
  for (int i = 0; i < 7; ++i) made.push_back(-quantile(offset + (0.5 - offset) * i / 7));
  std::sort(made.begin(), made.end());
  const double most = made.back();
  for (int k = 0; k < 16; ++k) {
    EXPECT_NEAR(kNf4Code[k], published[k], 1e-6);
    EXPECT_NEAR(kNf4Code[k], made[std::size_t(k)] / most, 1e-6);
    EXPECT_EQ(nearest_nf4(kNf4Code[k]), unsigned(k));
    if (k < 15) {
      EXPECT_EQ(nearest_nf4(kNf4Code[k] * 0.49f + kNf4Code[k + 1] * 0.51f), unsigned(k + 1));
      EXPECT_EQ(nearest_nf4(kNf4Code[k] * 0.51f + kNf4Code[k + 1] * 0.49f), unsigned(k));
    }
  }
}

}  // namespace
