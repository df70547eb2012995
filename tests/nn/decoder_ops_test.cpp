// The operators of a decoder of today against double precision and its central differences, in every storage type and
// for all the block sizes.

#include "nn/ops/norms.h"
#include "nn/ops/rotary.h"
#include "nn/ops/swiglu.h"

#include <cmath>
#include <numbers>
#include <stdexcept>

#include "transformer_reference.h"
#include "typed.h"

namespace oomlab::test {
namespace {

class DecoderOps : public TypedOps {};
INSTANTIATE_TEST_SUITE_P(BlockThreads, DecoderOps, ::testing::ValuesIn(kDistinctBlockThreads));

struct Rows {
  std::size_t rows, width;
};
// Rows that no pack and no group of lanes divides, too.
constexpr Rows kRows[] = {{1, 1}, {2, 7}, {3, 8}, {6, 33}, {12, 64}, {5, 257}};

Vector rms_norm(const Vector& x, const Vector& gamma, double epsilon) {
  const std::size_t width = gamma.size();
  Vector y(x.size());
  for (std::size_t r = 0; r < x.size() / width; ++r) {
    double square = 0;
    for (std::size_t c = 0; c < width; ++c) square += x[r * width + c] * x[r * width + c] / double(width);
    for (std::size_t c = 0; c < width; ++c)
      y[r * width + c] = x[r * width + c] / std::sqrt(square + epsilon) * gamma[c];
  }
  return y;
}

TEST_P(DecoderOps, RmsNorm) {
  constexpr float kEpsilon = 0.01f;  // so large that it shows
  for_each_type([&]<class T>(T) {
    for (const auto [rows, width] : kRows) {
      const auto x = random<T>(rows * width, 1, 3), gamma = random<T>(width, 2), dy = random<T>(rows * width, 3),
                 residual = random<T>(rows * width, 4), before = random<T>(width, 5);
      const Vector xd = wide(x), gd = wide(gamma), dyd = wide(dy);
      const auto x_ = device.upload(x), gamma_ = device.upload(gamma), dy_ = device.upload(dy);
      auto y_ = garbage<T>(x.size()), again_ = garbage<T>(x.size()), in_place_ = device.upload(x);
      auto rstd_ = garbage<float>(rows);
      nn::rms_norm_forward(device.context, x_.data(), gamma_.data(), y_.data(), rstd_.data(), rows, width, kEpsilon);
      expect(y_, rms_norm(xd, gd, kEpsilon), "y");
      nn::rms_norm_forward(device.context, in_place_.data(), gamma_.data(), in_place_.data(), nullptr, rows, width,
                           kEpsilon);
      EXPECT_EQ(wide(device.download(in_place_)), wide(device.download(y_)));
      nn::rms_norm_recompute(device.context, x_.data(), rstd_.data(), gamma_.data(), again_.data(), rows, width);
      EXPECT_EQ(wide(device.download(again_)), wide(device.download(y_)));

      Vector dx = central_differences(xd, [&](const Vector& v) { return dot(rms_norm(v, gd, kEpsilon), dyd); });
      Vector dgamma = central_differences(gd, [&](const Vector& v) { return dot(rms_norm(xd, v, kEpsilon), dyd); });
      auto over_ = device.upload(dy), added_ = device.upload(residual);
      nn::rms_norm_backward_input(device.context, over_.data(), x_.data(), rstd_.data(), gamma_.data(), over_.data(),
                                  rows, width, false);
      expect(over_, dx, "dx in dy's place");
      nn::rms_norm_backward_input(device.context, dy_.data(), x_.data(), rstd_.data(), gamma_.data(), added_.data(),
                                  rows, width, true);
      for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += double(static_cast<float>(residual[i]));
      expect(added_, dx, "dx, added");
      auto dgamma_ = garbage<T>(width), more_ = device.upload(before);
      nn::rms_norm_backward_weight(device.context, dy_.data(), x_.data(), rstd_.data(), dgamma_.data(), rows, width);
      expect(dgamma_, dgamma, "dgamma");
      nn::rms_norm_backward_weight(device.context, dy_.data(), x_.data(), rstd_.data(), more_.data(), rows, width,
                                   true);
      for (std::size_t c = 0; c < width; ++c) dgamma[c] += double(static_cast<float>(before[c]));
      expect(more_, dgamma, "dgamma, accumulated");
    }
  });
}

struct Heads {
  std::size_t rows, heads, others, depth, seq;  // others: heads of the row that are not turned
};
constexpr Heads kHeads[] = {{1, 1, 0, 2, 1}, {6, 3, 1, 6, 3}, {8, 5, 2, 16, 4}, {5, 2, 1, 64, 5}, {3, 1, 1, 256, 3}};

// The definition: a pair as a complex number, times e^(i · angle).
Vector rotated(const Vector& x, const Heads& h, double theta, const std::vector<int>& positions, bool back) {
  Vector y = x;
  const std::size_t stride = (h.heads + h.others) * h.depth, half = h.depth / 2;
  for (std::size_t r = 0; r < h.rows; ++r)
    for (std::size_t k = 0; k < h.heads; ++k)
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = positions[r] * std::pow(theta, -2.0 * double(i) / double(h.depth)) * (back ? -1 : 1);
        const std::size_t a = r * stride + k * h.depth + i, b = a + half;
        y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
        y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
      }
  return y;
}

TEST_P(DecoderOps, HeadsTurnWithTheirPosition) {
  for_each_type([&]<class T>(T) {
    for (const Heads& h : kHeads) {
      const std::size_t stride = (h.heads + h.others) * h.depth;
      const auto x = random<T>(h.rows * stride, 1);
      const nn::RotaryFrequencies frequencies = nn::rotary_frequencies({.theta = 100}, h.depth);
      std::vector<int> in_turn, anywhere;
      for (std::size_t r = 0; r < h.rows; ++r) {
        in_turn.push_back(static_cast<int>(r % h.seq));
        anywhere.push_back(static_cast<int>(r * 37 % 101));
      }
      const auto positions_ = device.upload(anywhere);
      for (const bool back : {false, true}) {
        auto x_ = device.upload(x), again_ = device.upload(x);
        nn::rotate_heads(device.context, x_.data(), stride, h.rows, h.heads, h.depth, frequencies,
                         {.tokens = {.seq = h.seq}}, back);
        expect(x_, rotated(wide(x), h, 100, in_turn, back), "turned");
        nn::rotate_heads(device.context, again_.data(), stride, h.rows, h.heads, h.depth, frequencies,
                         {.of_row = positions_.data()}, back);
        expect(again_, rotated(wide(x), h, 100, anywhere, back), "turned to positions");
      }
    }
  });
}

// Far from the start angles are large, and their sines must still be right: the angle is rounded once, to FP32.
TEST_P(DecoderOps, SinesOfLargeAngles) {
  const std::vector<int> positions{0, 1, 2, 3, 100, 8191, 65535, 131071, 1000003};
  const nn::RotaryFrequencies frequencies = nn::rotary_frequencies({.theta = 10}, 8);
  std::vector<float> x;
  for (std::size_t r = 0; r < positions.size(); ++r) x.insert(x.end(), {1, 1, 1, 1, 0, 0, 0, 0});
  auto x_ = device.upload(x);
  const auto positions_ = device.upload(positions);
  nn::rotate_heads(device.context, x_.data(), 8, positions.size(), 1, 8, frequencies, {.of_row = positions_.data()});
  const std::vector<float> found = device.download(x_);
  for (std::size_t r = 0; r < positions.size(); ++r)
    for (std::size_t i = 0; i < 4; ++i) {
      const float angle = static_cast<float>(positions[r]) * frequencies.of[i];
      EXPECT_NEAR(found[r * 8 + i], std::cos(double(angle)), 3e-7) << positions[r] << " " << i;
      EXPECT_NEAR(found[r * 8 + 4 + i], std::sin(double(angle)), 3e-7) << positions[r] << " " << i;
    }
}

TEST(RotaryFrequencies, AreScaledAsTheConfigurationSays) {
  using Scaling = nn::Rotary::Scaling;
  const auto of = [](Scaling scaling, std::size_t i) {
    return double(nn::rotary_frequencies({500000, scaling, 8, 1, 4, 8192}, 128).of[i]);
  };
  for (const std::size_t i : {0u, 20u, 35u, 63u}) {
    const double plain = std::pow(500000, -double(i) / 64);
    EXPECT_NEAR(of(Scaling::none, i), plain, 1e-6 * plain);
    EXPECT_NEAR(of(Scaling::linear, i), plain / 8, 1e-6 * plain);
  }
  // Wavelengths of 2,048 positions and less stay, of 8,192 and more are 8 times longer; one in between is in between.
  EXPECT_EQ(of(Scaling::llama3, 0), of(Scaling::none, 0));
  EXPECT_EQ(of(Scaling::llama3, 28), of(Scaling::none, 28));              // 1,957 positions
  EXPECT_NEAR(of(Scaling::llama3, 35), of(Scaling::none, 35) / 8, 1e-9);  // 8,218
  const double turns = 8192 * of(Scaling::none, 31) / (2 * std::numbers::pi), kept = (turns - 1) / 3;
  EXPECT_NEAR(of(Scaling::llama3, 31), of(Scaling::none, 31) * (kept + (1 - kept) / 8), 1e-8);
}

TEST(RotaryFrequencies, HeadsThatCannotTurnAreRefused) {
  for (const std::size_t depth : {0u, 1u, 7u, 258u})
    EXPECT_THROW((void)nn::rotary_frequencies({}, depth), std::invalid_argument) << depth;
}

Vector swiglu(const Vector& gate_up, std::size_t rows, std::size_t hidden) {
  Vector y(rows * hidden);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < hidden; ++i) {
      const double gate = gate_up[r * 2 * hidden + i];
      y[r * hidden + i] = gate / (1 + std::exp(-gate)) * gate_up[r * 2 * hidden + hidden + i];
    }
  return y;
}

TEST_P(DecoderOps, SwiGlu) {
  for_each_type([&]<class T>(T) {
    for (const auto [rows, hidden] : kRows) {
      const auto gate_up = random<T>(rows * 2 * hidden, 1, 4), dy = random<T>(rows * hidden, 2);
      const Vector expected = swiglu(wide(gate_up), rows, hidden);
      const auto from_ = device.upload(gate_up), dy_ = device.upload(dy);
      auto y_ = garbage<T>(dy.size()), over_ = device.upload(gate_up), d_ = device.upload(gate_up);
      nn::swiglu_forward(device.context, from_.data(), y_.data(), hidden, rows, hidden);
      expect(y_, expected, "y");
      nn::swiglu_forward(device.context, over_.data(), over_.data(), 2 * hidden, rows, hidden);
      const auto over = device.download(over_);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t i = 0; i < hidden; ++i) {
          ASSERT_EQ(static_cast<float>(over[r * 2 * hidden + i]),
                    static_cast<float>(device.download(y_)[r * hidden + i]));
          ASSERT_EQ(static_cast<float>(over[(r * 2 + 1) * hidden + i]),
                    static_cast<float>(gate_up[(r * 2 + 1) * hidden + i]));
          if (hidden > 33) break;
        }
      nn::swiglu_backward(device.context, dy_.data(), d_.data(), rows, hidden);
      expect(
          d_,
          central_differences(wide(gate_up), [&](const Vector& v) { return dot(swiglu(v, rows, hidden), wide(dy)); }),
          "gradient of gate and up");
    }
  });
}

// Gates that overflow an exponential: silu(−1000) is 0, silu(1000) is 1000.
TEST_P(DecoderOps, SwiGluOfLargeGates) {
  const auto from_ = device.upload(std::vector<float>{-1000, 1000, 2, 2});
  auto y_ = garbage<float>(2);
  nn::swiglu_forward(device.context, from_.data(), y_.data(), 2, 1, 2);
  const std::vector<float> y = device.download(y_);
  EXPECT_NEAR(y[0], 0, 1e-30);
  EXPECT_EQ(y[1], 2000);
}

}  // namespace
}  // namespace oomlab::test
