// A linear layer: what it computes, what a frozen one leaves alone, and what it stores.

#include "nn/layers/linear.h"

#include <map>
#include <string>

#include "device.h"
#include "reference.h"

namespace oomlab::test {
namespace {

using namespace nn;

constexpr double kDevice = 1e-4;

class LinearLayer : public ::testing::Test {
 protected:
  static constexpr std::size_t kRows = 7, kIn = 20, kOut = 12, kStride = 28;
  Device device;
  const std::vector<float> x_ = random_floats(kRows * kStride, 1), w_ = random_floats(kOut * kIn, 2),
                           b_ = random_floats(kOut, 3), y_ = random_floats(kRows * kOut, 4);
  const DeviceBuffer<float> x = device.upload(x_), w = device.upload(w_), b = device.upload(b_), dy = device.upload(y_);

  Linear<DenseWeights<float>> layer(bool with_bias) const {
    return {.weights = {w.data(), kIn, kOut},
            .bias = with_bias ? b.data() : nullptr,
            .trained = false,
            .d_weights = nullptr,
            .d_bias = nullptr};
  }
};

TEST_F(LinearLayer, ReadsRowsFarApartAndAddsToWhatIsThere) {
  Vector packed;
  for (std::size_t r = 0; r < kRows; ++r)
    packed.insert(packed.end(), x_.begin() + std::ptrdiff_t(r * kStride),
                  x_.begin() + std::ptrdiff_t(r * kStride + kIn));
  for (const bool with_bias : {false, true})
    for (const bool add : {false, true})
      for (const bool product : {false, true}) {
        auto y = device.upload(add ? y_ : std::vector<float>(y_.size(), NAN));
        const auto of = layer(with_bias);
        if (product)
          of.product(device.context, {x.data(), kStride}, y.data(), kRows, add);
        else
          of.forward(device.context, {x.data(), kStride}, y.data(), kRows, add);
        Vector expected = linear(packed, doubles(w_), with_bias && !product ? doubles(b_) : Vector{}, kRows, kIn, kOut);
        for (std::size_t i = 0; add && i < expected.size(); ++i) expected[i] += y_[i];
        expect_close(device.download(y), expected, kDevice, "y");
      }
}

TEST_F(LinearLayer, FrozenNeedsNoInputAndLeavesGradientsAlone) {
  auto dw = device.upload(std::vector<float>(kOut * kIn, 5.0f)), db = device.upload(std::vector<float>(kOut, 5.0f));
  auto of = layer(true);
  of.d_weights = dw.data(), of.d_bias = db.data();
  EXPECT_FALSE(of.needs_input());
  of.backward_weights(device.context, dy.data(), nullptr, kRows, false);
  EXPECT_EQ(device.download(dw), std::vector<float>(kOut * kIn, 5.0f));
  EXPECT_EQ(device.download(db), std::vector<float>(kOut, 5.0f));

  of.trained = true;
  EXPECT_TRUE(of.needs_input());
  const std::vector<float> short_rows(x_.begin(), x_.begin() + kRows * kIn);
  const auto input = device.upload(short_rows);
  auto dx = device.upload(short_rows);
  of.backward_weights(device.context, dy.data(), input.data(), kRows, false);
  of.backward_input(device.context, dy.data(), dx.data(), kRows, /*add=*/true);
  LinearGradients g = linear_backward(doubles(y_), doubles(short_rows), doubles(w_), kRows, kIn, kOut);
  for (std::size_t i = 0; i < g.dx.size(); ++i) g.dx[i] += short_rows[i];
  expect_close(device.download(dx), g.dx, kDevice, "dx");
  expect_close(device.download(dw), g.dw, kDevice, "dw");
  expect_close(device.download(db), g.db, kDevice, "db");
}

TEST_F(LinearLayer, StoresBytesByName) {
  for (const bool with_bias : {false, true}) {
    std::map<std::string, std::size_t> bytes, expected{{"weight", kIn * kOut * sizeof(float)}};
    if (with_bias) expected["bias"] = kOut * sizeof(float);
    layer(with_bias).each_part([&](const char* name, std::size_t of) { bytes[name] += of; });
    EXPECT_EQ(bytes, expected);
  }
}

}  // namespace
}  // namespace oomlab::test
