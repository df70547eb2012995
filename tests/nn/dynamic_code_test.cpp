// The 8-bit codes: found by arithmetic, they are those that a search of the bounds finds.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "device.h"
#include "nn/optimizer/dynamic_code.h"
#include "nn/optimizer/optimizer.h"

namespace oomlab::test {
namespace {

using namespace nn;

const DynamicCode& code_with(bool sign) { return sign ? kSignedCode : kUnsignedCode; }

// The first code whose bound is not below x.
int searched(bool with_sign, float x) {
  const DynamicCode& code = code_with(with_sign);
  return static_cast<int>(std::lower_bound(code.bound, code.bound + 255, x) - code.bound);
}
int own_sign_of(int code, float x) { return x < 0.0f && code == 127 ? 126 : code; }

// Both ways to the code of x: with the bounds, and without them where that is sure.
template <bool kWithSign>
struct Checked {
  std::size_t count = 0, unsure = 0, wrong = 0;
  void operator()(float x) {
    const int expected = searched(kWithSign, x);
    const int found = code_of<kWithSign>(code_with(kWithSign).bound, x);
    const float codes = count_of_codes<kWithSign>(x);
    const bool sure = !is_unsure<kWithSign>(codes);
    const int near = code_at<kWithSign>(codes, x);
    ++count;
    unsure += !sure;
    if (found == expected && (sure ? near == expected : std::abs(near - expected) <= 1)) return;
    if (wrong++ < 5)
      ADD_FAILURE() << x << ": " << found << ", or " << near << (sure ? " for sure" : "") << ", not " << expected;
  }
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// A number, its neighbours, and their neighbours.
template <class Check>
void with_neighbours(float x, Check& check) {
  const float above = std::nextafterf(x, kInfinity), below = std::nextafterf(x, -kInfinity);
  for (const float y : {x, above, below, std::nextafterf(above, kInfinity), std::nextafterf(below, -kInfinity)})
    check(y), check(-y);
}

template <bool kWithSign>
void check_codes() {
  const DynamicCode& code = code_with(kWithSign);
  Checked<kWithSign> check;
  // The lines rise with x, so what holds on both sides of every bound holds everywhere.
  for (std::size_t q = 0; q < 256; ++q) {
    with_neighbours(code.bound[q], check);
    with_neighbours(code.value[q], check);
    with_neighbours(code.value[q] * 1.001f, check);
  }
  for (int decade = -7; decade <= 0; ++decade) with_neighbours(std::pow(10.0f, static_cast<float>(decade)), check);
  const float denormal = std::numeric_limits<float>::denorm_min(), least = std::numeric_limits<float>::min();
  for (const float x : {0.0f, denormal, 3 * denormal, least / 2, least, 0.5f, 0.99297f, 1.0f, 2.0f, 1e30f,
                        std::numeric_limits<float>::max(), kInfinity})
    with_neighbours(x, check);
  EXPECT_GT(check.unsure, 250u);  // the bounds, at least
  check.unsure = 0, check.count = 0;
  const std::size_t samples = 100'000 * OOMLAB_ROUNDS;
  for (std::size_t i = 0; i < samples / 2; ++i) {
    const float part = static_cast<float>(i) / static_cast<float>(samples / 2), small = std::pow(10.0f, -8 * part);
    check(i % 2 && kWithSign ? -part : part);
    check(i % 4 < 2 && kWithSign ? -small : small);
  }
  EXPECT_EQ(check.count, samples);
  EXPECT_LT(check.unsure, samples / 5000);  // or codes would be corrected in more than a twentieth of all blocks
  EXPECT_EQ(check.wrong, 0u);
  EXPECT_EQ(code_of<kWithSign>(code.bound, NAN), kWithSign ? 127 : 0);
  EXPECT_EQ(code_of<kWithSign>(code.bound, -NAN), kWithSign ? 127 : 0);
}
TEST(Codes, WithSignAreThoseOfTheSearch) { check_codes<true>(); }
TEST(Codes, WithoutSignAreThoseOfTheSearch) { check_codes<false>(); }

// Floats from −1, or 0, to 1 in the order of their bits: one of some thousands, and in the nightly test every one.
template <bool kWithSign>
void check_floats_by_bits() {
  const std::uint32_t step = std::getenv("OOMLAB_EVERY_FLOAT") ? 1 : 40'993 / OOMLAB_ROUNDS;
  Checked<kWithSign> check;
  for (std::uint32_t bits = 0; bits <= std::bit_cast<std::uint32_t>(1.0f); bits += step) {
    check(std::bit_cast<float>(bits));
    if (kWithSign) check(-std::bit_cast<float>(bits));
  }
  EXPECT_EQ(check.wrong, 0u) << "of " << check.count;
}
TEST(Codes, OfFloatsWithSignAreThoseOfTheSearch) { check_floats_by_bits<true>(); }
TEST(Codes, OfFloatsWithoutSignAreThoseOfTheSearch) { check_floats_by_bits<false>(); }

TEST(Codes, OfFirstMomentsKeepTheirSign) {
  for (const float x : {-1e-30f, -1e-8f, -2e-7f, -0.1f, -1.0f})
    EXPECT_LT(kSignedCode.value[with_own_sign(code_of<true>(kSignedCode.bound, x), x)], 0.0f) << x;
  for (const float x : {0.0f, -0.0f}) EXPECT_EQ(with_own_sign(code_of<true>(kSignedCode.bound, x), x), 127);
  EXPECT_EQ(with_own_sign(code_of<true>(kSignedCode.bound, 1e-8f), 1e-8f), 127);
}

// Without memory of the steps before, moments are the gradient and its square. Every block has numbers that only the
// bounds decide, and a 1.
TEST(Codes, OfAnUpdateAreThoseOfTheSearch) {
  std::vector<float> gradient;
  const auto add = [&](float x) {
    if (gradient.size() % kCodeBlock == 0) gradient.push_back(gradient.size() % (2 * kCodeBlock) ? -1.0f : 1.0f);
    if (std::fabs(x) <= 1.0f) gradient.push_back(x);
  };
  for (int q = 0; q < 255; ++q) {
    with_neighbours(kSignedCode.bound[q], add);
    with_neighbours(std::sqrt(kUnsignedCode.bound[q]), add);
  }
  ASSERT_GE(gradient.size(), kLeastOf8Bits);
  Device device;
  auto value = device.upload(std::vector<float>(gradient.size())), on_device = device.upload(gradient);
  OptimizerSettings settings;
  settings.adamw = {.lr = 0.1f, .beta1 = 0.0f, .beta2 = 0.0f};
  Optimizer<float> optimizer(device.context, {{"matrix", "layer 1", 1, gradient.size()}}, {value.data()},
                             {UpdateRule::adamw8}, settings);
  const Optimizer<float>::Update update{0, on_device.data()};
  optimizer.update(device.context, {&update, 1});
  const auto first = device.download(optimizer.state(0).codes[0]),
             second = device.download(optimizer.state(0).codes[1]);
  for (const auto& absmax : optimizer.state(0).absmax)
    for (const float most : device.download(absmax)) ASSERT_EQ(most, 1.0f);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradient[i];
    ASSERT_EQ(first[i], own_sign_of(searched(true, g), g)) << i << ": " << g;
    ASSERT_EQ(second[i], searched(false, g * g)) << i << ": " << g;
  }
}

}  // namespace
}  // namespace oomlab::test
