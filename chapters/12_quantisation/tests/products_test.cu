// Products with quantised weights, against sums in double precision, and the integer product against its definition.

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "../../../tests/nn/device.h"
#include "plan/quantised/decoder.h"
#include "products.h"

namespace {

using namespace oomlab;
using namespace oomlab::quantisation;
using namespace oomlab::test;

class Products : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }
  Device device;

  template <class T>
  Matrix<T> matrix_of(const Format& format, std::size_t out, std::size_t in) {
    Matrix<T> matrix(device.context, format, "matrix", out, in);
    Loading loading(device.context, loading_bytes(format, out, in));
    const std::vector<float> weights = random_floats(out * in, 11, 0.7f);
    matrix.encode(device.context, loading, [&](Context& context, std::size_t first, std::size_t count, float* to) {
      CUDA_CHECK(
          cudaMemcpyAsync(to, weights.data() + first, count * sizeof(float), cudaMemcpyHostToDevice, context.stream()));
      context.synchronize();
    });
    return matrix;
  }
  template <class T>
  std::vector<float> weights_of(const Matrix<T>& matrix) {
    auto back = device.upload(std::vector<float>(matrix.count()));
    matrix.decode(device.context, 0, matrix.count(), back.data());
    return device.download(back);
  }
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Products, ::testing::ValuesIn(kDistinctBlockThreads));

template <class T>
std::vector<T> typed(const std::vector<float>& values) {
  std::vector<T> all;
  for (const float v : values) all.push_back(static_cast<T>(v));
  return all;
}

struct Shape {
  std::size_t rows, in, out, stride;
};
const Shape kShapes[] = {{1, 64, 64, 64}, {1, 172, 5, 172},  {3, 256, 7, 256}, {5, 172, 64, 344}, {1, 33, 4, 33},
                         {4, 6, 9, 6},    {17, 128, 3, 128}, {2, 96, 4, 97},   {1, 1, 1, 1},      {16, 64, 4, 64}};

TEST_P(Products, AreThoseOfTheWeightsThatAreStored) {
  const auto check = [&]<class T>(T, double tolerance) {
    for (const Format& format :
         {Format{}, Format{.scheme = Scheme::int8_tensor}, Format{.scheme = Scheme::int8_row},
          Format{.scheme = Scheme::nf4}, Format{.scheme = Scheme::int4, .group = 64},
          Format{.scheme = Scheme::int4, .group = 32}, Format{.scheme = Scheme::int4, .group = 12},
          Format{.scheme = Scheme::int4, .group = 3}, Format{.scheme = Scheme::int4, .group = 1},
          Format{.scheme = Scheme::int8_row, .dynamic = true}})
      for (const auto& [rows, in, out, stride] : kShapes)
        for (const bool add : {false, true}) {
          if (format.scheme == Scheme::int4 && in * out % format.group != 0) continue;
          SCOPED_TRACE(fmt::format("{}{} {}: {} rows, {} to {}", name_of(format.scheme),
                                   format.dynamic ? " dynamic" : "", format.group, rows, in, out));
          const Matrix<T> matrix = matrix_of<T>(format, out, in);
          const std::vector<float> w = weights_of(matrix);
          const std::vector<T> x = typed<T>(random_floats(rows * stride, 12)), bias = typed<T>(random_floats(out, 13)),
                               before = typed<T>(random_floats(rows * out, 14));
          const auto on_device = device.upload(x), biases = device.upload(bias);
          auto y = device.upload(before);
          DynamicScratch scratch(device.context, format.dynamic ? rows : 0, in, out);
          const std::uint64_t flops = device.context.flops();
          multiply<T>(device.context, matrix, {on_device.data(), stride}, add ? nullptr : biases.data(), y.data(), rows,
                      add, scratch);
          std::vector<double> expected;
          for (std::size_t r = 0; r < rows; ++r) {
            float most = 0.0f;
            for (std::size_t i = 0; i < in; ++i) most = std::max(most, std::fabs(float(x[r * stride + i])));
            const float step = most / 127.0f;
            for (std::size_t o = 0; o < out; ++o) {
              double sum = add ? float(before[r * out + o]) : float(bias[o]);
              for (std::size_t i = 0; i < in; ++i) {
                const float v = float(x[r * stride + i]);
                sum += double(w[o * in + i]) * (format.dynamic ? double(step) * std::rint(v / step) : double(v));
              }
              expected.push_back(sum);
            }
          }
          std::vector<float> found;
          for (const T v : device.download(y)) found.push_back(float(v));
          expect_close(found, expected, tolerance, "products");
          EXPECT_EQ(device.context.flops() - flops, 2 * rows * in * out);
        }
  };
  check(float{}, 2e-6);
  check(__nv_bfloat16{}, 1e-2);
}

/// A way to store weights of which products.h knows nothing: halves of whole numbers.
struct Halves {
  const std::int8_t* codes;
  using Table = NoTable;
  static constexpr std::size_t shared_bytes = 0;
  static __device__ Table table() { return {}; }
  __device__ float value(std::size_t i, Table) const { return 0.5f * static_cast<float>(codes[i]); }
};

TEST_P(Products, NeedNothingOfAFormatButItsView) {
  for (const auto& [rows, in, out, stride] : kShapes) {
    SCOPED_TRACE(fmt::format("{} rows, {} to {}", rows, in, out));
    std::vector<std::int8_t> codes;
    for (const int v : random_labels(in * out, 255, 31)) codes.push_back(static_cast<std::int8_t>(v - 127));
    const std::vector<float> x = random_floats(rows * stride, 32);
    const auto on_device = device.upload(codes);
    const auto inputs = device.upload(x);
    auto y = device.upload(std::vector<float>(rows * out));
    weight_only_product(device.context, Halves{on_device.data()}, kBlock, RowsOf<float>{inputs.data(), stride}, nullptr,
                        y.data(), rows, in, out, false);
    std::vector<double> expected;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t o = 0; o < out; ++o) {
        double sum = 0;
        for (std::size_t i = 0; i < in; ++i) sum += 0.5 * codes[o * in + i] * double(x[r * stride + i]);
        expected.push_back(sum);
      }
    expect_close(device.download(y), expected, 2e-6, "products");
  }
}

TEST_P(Products, OfWholeNumbersAreExact) {
  for (const std::size_t rows : {1, 2, 4, 5, 15, 16, 33})
    for (const std::size_t in : {1, 2, 3, 4, 7, 16, 48, 63, 172, 300, 1000})
      for (const std::size_t out : {1, 2, 3, 4, 5, 8, 12}) {
        std::vector<std::int8_t> x, w;
        for (const int v : random_labels(rows * in, 255, 21)) x.push_back(static_cast<std::int8_t>(v - 127));
        for (const int v : random_labels(out * in, 255, 22)) w.push_back(static_cast<std::int8_t>(v - 127));
        std::fill_n(x.begin(), in, std::int8_t(-127));  // the largest sums
        std::fill_n(w.begin(), in, std::int8_t(127));
        std::vector<std::int32_t> expected;
        for (std::size_t r = 0; r < rows; ++r)
          for (std::size_t o = 0; o < out; ++o) {
            std::int64_t sum = 0;
            for (std::size_t i = 0; i < in; ++i) sum += std::int64_t(x[r * in + i]) * w[o * in + i];
            expected.push_back(static_cast<std::int32_t>(sum));
          }
        const auto on_device = device.upload(x), weights = device.upload(w);
        auto sums = device.upload(std::vector<std::int32_t>(rows * out, -1));
        int8_product(device.context, on_device.data(), weights.data(), sums.data(), rows, in, out);
        ASSERT_EQ(device.download(sums), expected) << rows << " x " << in << " x " << out;
      }
  EXPECT_TRUE(library_takes(16, 4, 4));
  for (const auto& [rows, in, out] : {std::array{15, 4, 4}, {16, 6, 4}, {16, 4, 6}, {33, 4, 5}})
    EXPECT_FALSE(library_takes(std::size_t(rows), std::size_t(in), std::size_t(out)));
}

// Each row of activations has a scale of its own: a large one changes no other.
TEST_P(Products, QuantiseActivationsRowByRow) {
  const Matrix<float> matrix = matrix_of<float>({.scheme = Scheme::int8_row, .dynamic = true}, 8, 64);
  const auto product = [&](float factor) {
    std::vector<float> x = random_floats(3 * 64, 31);
    for (std::size_t i = 0; i < 64; ++i) x[64 + i] *= factor;
    const auto on_device = device.upload(x);
    auto y = device.upload(std::vector<float>(3 * 8));
    DynamicScratch scratch(device.context, 3, 64, 8);
    multiply<float>(device.context, matrix, {on_device.data(), 64}, nullptr, y.data(), 3, false, scratch);
    return device.download(y);
  };
  const std::vector<float> one = product(1.0f), large = product(1024.0f);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(large[i], one[i] * (i / 8 == 1 ? 1024.0f : 1.0f)) << i;
}

TEST(DynamicScratchOf, HasTheBytesThatItSays) {
  Device device;
  for (const std::size_t rows : {0, 1, 5, 64}) {
    const std::size_t before = device.ledger.live_bytes();
    const DynamicScratch scratch(device.context, rows, 172, 344);
    EXPECT_EQ(device.ledger.live_bytes() - before, dynamic_product_bytes(rows, 172, 344));
    EXPECT_EQ(dynamic_product_bytes(rows, 172, 344),
              (rows * 172 + 511) / 512 * 512 + (rows * 4 + 511) / 512 * 512 + (rows * 344 * 4 + 511) / 512 * 512);
  }
}

}  // namespace
