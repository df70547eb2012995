// 2:4 sparsity against definitions written out on the host: what is kept, where it lies, in how many bytes; and that a
// product from the packed form has the bits of the dense one.

#include "sparse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../../../tests/nn/device.h"
#include "nn/ops/activation.h"

namespace {

using namespace oomlab;
using namespace oomlab::lighter_models;
using test::random_floats;

std::uint16_t bits_of(__half h) {
  std::uint16_t bits;
  std::memcpy(&bits, &h, sizeof bits);
  return bits;
}
std::vector<__half> halves(const std::vector<float>& values) {
  std::vector<__half> all;
  for (const float v : values) all.push_back(static_cast<__half>(v));
  return all;
}
// Weights of a kind that may go wrong.
enum class Kind { random, zero, negative_zero, denormal, tied, mixed, large };
constexpr Kind kKinds[] = {Kind::random, Kind::zero,  Kind::negative_zero, Kind::denormal,
                           Kind::tied,   Kind::mixed, Kind::large};
std::vector<__half> numbers(Kind kind, std::size_t count, unsigned seed) {
  std::vector<float> v = random_floats(count, seed);
  for (std::size_t i = 0; i < count; ++i) switch (kind) {
      case Kind::random: break;
      case Kind::zero: v[i] = 0.0f; break;
      case Kind::negative_zero: v[i] = -0.0f; break;
      case Kind::denormal: v[i] = std::round(v[i] * 500) * 0x1p-24f; break;
      case Kind::tied: v[i] = std::round(v[i]); break;
      case Kind::mixed: v[i] = i % 3 == 0 ? -0.0f : i % 3 == 1 ? v[i] * 0x1p-15f : v[i]; break;
      case Kind::large: v[i] *= 30000.0f; break;
    }
  return halves(v);
}

// The definition: of each four, those of which fewer than two others are larger, or as large and further left.
struct Reference {
  std::vector<__half> dense, values;
  std::vector<std::uint32_t> places;
  Reference(const std::vector<__half>& weights, std::size_t out, std::size_t in)
      : dense(weights.size(), static_cast<__half>(0.0f)), places(out * ((in + 31) / 32), 0u) {
    for (std::size_t row = 0; row < out; ++row)
      for (std::size_t first = 0; first < in; first += 4) {
        std::size_t kept = 0;
        for (std::size_t p = 0; p < 4; ++p) {
          const auto at = [&](std::size_t q) { return std::fabs(float(weights[row * in + first + q])); };
          std::size_t ahead = 0;
          for (std::size_t q = 0; q < 4; ++q) ahead += at(q) > at(p) || (at(q) == at(p) && q < p);
          if (ahead >= 2) continue;
          const std::size_t number = first / 2 + kept++;  // of the kept values of this row
          values.push_back(weights[row * in + first + p]);
          dense[row * in + first + p] = values.back();
          places[row * ((in + 31) / 32) + number / 16] |= std::uint32_t(p) << (number % 16 * 2);
        }
        EXPECT_EQ(kept, 2u);
      }
  }
};

struct Shape {
  std::size_t batch, out, in;
};
const Shape kShapes[] = {{1, 1, 4},    {1, 3, 32},  {3, 2, 28},   {4, 5, 36},    {5, 7, 64},
                         {7, 33, 100}, {9, 1, 512}, {2, 300, 12}, {13, 10, 1028}};

class Sparse : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }
  template <class T>
  std::vector<std::uint32_t> bits(const DeviceBuffer<T>& buffer) {
    std::vector<std::uint32_t> all;
    for (const T& v : device.download(buffer)) {
      std::uint32_t b = 0;
      std::memcpy(&b, &v, sizeof v);
      all.push_back(b);
    }
    return all;
  }
  std::vector<std::uint32_t> bits(const std::vector<__half>& values) {
    std::vector<std::uint32_t> all;
    for (const __half v : values) all.push_back(bits_of(v));
    return all;
  }
  template <class T>
  DeviceBuffer<T> garbage(std::size_t count) {
    return device.upload(std::vector<T>(count, static_cast<T>(NAN)));
  }
  test::Device device;
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Sparse, ::testing::ValuesIn(kDistinctBlockThreads));

TEST_P(Sparse, KeepsTwoOfFour) {
  for (const auto& [batch, out, in] : kShapes)
    for (const Kind kind : kKinds) {
      const std::vector<__half> weights = numbers(kind, out * in, 1);
      const Reference expected(weights, out, in);
      TwoOfFour packed(device.context, device.upload(weights).data(), out, in, "layer");
      EXPECT_EQ(bits(packed.values()), bits(expected.values)) << out << " x " << in << ", " << int(kind);
      EXPECT_EQ(device.download(packed.places()), expected.places) << out << " x " << in << ", " << int(kind);
      auto dense = garbage<__half>(out * in);
      packed.unpack(device.context, dense.data());
      EXPECT_EQ(bits(dense), bits(expected.dense)) << out << " x " << in << ", " << int(kind);
    }
}

TEST_P(Sparse, ProductsHaveTheBitsOfDenseOnes) {
  for (const Shape& s : kShapes)
    for (const Kind kind : kKinds)
      for (const Kind of_x : {Kind::random, Kind::mixed, Kind::large}) {
        if (OOMLAB_ROUNDS < 10 && kind != Kind::random && of_x != Kind::mixed) continue;
        const std::size_t batch = s.batch, out = s.out, in = s.in;
        const auto x = device.upload(numbers(of_x, batch * in, 2));
        const std::vector<__half> weights = numbers(kind, out * in, 3);
        const TwoOfFour packed(device.context, device.upload(weights).data(), out, in, "layer");
        const auto masked = device.upload(Reference(weights, out, in).dense);
        const auto check = [&]<class Out>(Out) {
          auto found = garbage<Out>(batch * out), expected = garbage<Out>(batch * out);
          const std::uint64_t before = device.context.flops();
          multiply_dense(device.context, x.data(), masked.data(), expected.data(), batch, in, out);
          const std::uint64_t dense_flops = device.context.flops() - before;
          packed.multiply(device.context, x.data(), found.data(), batch);
          EXPECT_EQ(dense_flops, 2 * batch * in * out);
          EXPECT_EQ(device.context.flops() - before - dense_flops, dense_flops / 2);
          EXPECT_EQ(bits(found), bits(expected)) << batch << ", " << out << " x " << in << ", " << int(kind);
        };
        check(float{});
        check(__half{});
      }
}

TEST_P(Sparse, DenseProductsAreThoseOfTheDefinition) {
  for (const auto& [batch, out, in] : kShapes) {
    const std::vector<__half> x = numbers(Kind::random, batch * in, 2), weights = numbers(Kind::random, out * in, 3);
    std::vector<double> expected(batch * out, 0.0);
    for (std::size_t b = 0; b < batch; ++b)
      for (std::size_t o = 0; o < out; ++o)
        for (std::size_t i = 0; i < in; ++i)
          expected[b * out + o] += double(float(x[b * in + i])) * double(float(weights[o * in + i]));
    auto y = garbage<float>(batch * out);
    multiply_dense(device.context, device.upload(x).data(), device.upload(weights).data(), y.data(), batch, in, out);
    test::expect_close(device.download(y), expected, 1e-6 * std::sqrt(double(in)) + 1e-6, "dense product");
  }
}

TEST_P(Sparse, ALayerWithBiasAndActivation) {
  const std::size_t batch = 5, out = 24, in = 64;
  const std::vector<__half> weights = numbers(Kind::random, out * in, 3), bias = numbers(Kind::random, out, 4);
  const auto x = device.upload(numbers(Kind::random, batch * in, 2)), b = device.upload(bias);
  const TwoOfFour packed(device.context, device.upload(weights).data(), out, in, "layer");
  auto dense = garbage<__half>(out * in), y = garbage<__half>(batch * out), expected = garbage<__half>(batch * out);
  packed.unpack(device.context, dense.data());
  packed.multiply(device.context, x.data(), y.data(), batch);
  multiply_dense(device.context, x.data(), dense.data(), expected.data(), batch, in, out);
  for (auto* z : {&y, &expected})
    nn::bias_activation(device.context, z->data(), b.data(), batch, out, nn::Activation::relu);
  EXPECT_EQ(bits(y), bits(expected));
}

// Equal in the dense product and in this one only where x is finite.
TEST_P(Sparse, AZeroTimesInfinityIsOnlyInTheDenseProduct) {
  std::vector<__half> x = numbers(Kind::random, 4, 2);
  x[3] = static_cast<__half>(INFINITY);
  const std::vector<__half> weights = halves({3, 2, 1, 0.5f});
  const TwoOfFour packed(device.context, device.upload(weights).data(), 1, 4, "layer");
  auto y = garbage<float>(1), dense = garbage<float>(1);
  packed.multiply(device.context, device.upload(x).data(), y.data(), 1);
  multiply_dense(device.context, device.upload(x).data(), device.upload(halves({3, 2, 0, 0})).data(), dense.data(), 1,
                 4, 1);
  EXPECT_TRUE(std::isfinite(device.download(y)[0]));
  EXPECT_TRUE(std::isnan(device.download(dense)[0]));
}

TEST_P(Sparse, NumbersThatAreNoneAreKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<__half> weights = halves({1, nan, 60000, INFINITY, nan, nan, nan, nan});
  const TwoOfFour packed(device.context, device.upload(weights).data(), 1, 8, "layer");
  EXPECT_EQ(bits(packed.values()), bits(std::vector<__half>{weights[1], weights[3], weights[4], weights[5]}));
  EXPECT_EQ(device.download(packed.places()), (std::vector<std::uint32_t>{0b01001101}));
}

TEST(TwoOfFour, TakesNineSixteenthsOfTheBytes) {
  test::Device device;
  for (const std::size_t in : {32, 64, 512, 2048})
    for (const std::size_t out : {1, 3, 100}) {
      const auto dense = device.upload(numbers(Kind::random, out * in, 1));
      const std::size_t before = device.ledger.live_by_category()[Category::parameters];
      const TwoOfFour packed(device.context, dense.data(), out, in, "layer");
      EXPECT_EQ(packed.bytes() * 16, dense.bytes() * 9);
      EXPECT_EQ(device.ledger.live_by_category()[Category::parameters] - before, two_of_four_bytes(out, in));
    }
  for (const std::size_t in : {4, 28, 36, 516}) {  // the last word of a row is not full
    const auto dense = device.upload(numbers(Kind::random, 5 * in, 1));
    const TwoOfFour packed(device.context, dense.data(), 5, in, "layer");
    EXPECT_EQ(packed.bytes(), 5 * (in + 4 * ((in + 31) / 32)));
    EXPECT_GT(packed.bytes() * 16, dense.bytes() * 9);
  }
  EXPECT_EQ(two_of_four_bytes(8192, 8192), std::size_t(8192) * 8192 * 2 / 16 * 9);
}

TEST(TwoOfFour, RefusesRowsThatAreNotGroupsOfFour) {
  test::Device device;
  const auto weights = device.upload(numbers(Kind::random, 2 * 510, 1));
  auto y = device.upload(std::vector<float>(4));
  const std::string expected = "2:4 sparsity keeps 2 of every 4 weights; 510 inputs are not divisible by 4";
  const auto refusal = [](auto f) -> std::string {
    try {
      f();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  const std::size_t before = device.ledger.live_bytes();
  EXPECT_EQ(refusal([&] { TwoOfFour(device.context, weights.data(), 2, 510, "layer"); }), expected);
  EXPECT_EQ(refusal([&] { multiply_dense(device.context, weights.data(), weights.data(), y.data(), 2, 510, 2); }),
            expected);
  EXPECT_EQ(refusal([&] { two_of_four_bytes(2, 510); }), expected);
  EXPECT_EQ(device.ledger.live_bytes(), before);
}

}  // namespace
