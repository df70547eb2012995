// Masks: which weights are zero, that they stay so through training, and what that costs.

#include <gtest/gtest.h>

#include "pruning.h"
#include "small_networks.h"

namespace {

using namespace oomlab;
using namespace oomlab::lighter_models;
using namespace oomlab::test;

class Masks : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }
  Device device;
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Masks, ::testing::ValuesIn(kDistinctBlockThreads));

bool is_weight(const nn::Parameter& p) { return ends_with(p.name, " weight"); }

TEST_P(Masks, ZeroTheSmallestWeightsOfEachTensor) {
  for (const NetworkSpec& spec : {basic(), separable(), squeezed(), segmenter()})
    for (const std::size_t percent : {0, 1, 50, 90, 99}) {
      Network model(device.context, spec, 3, false);
      stir(device, model);
      std::size_t masked = 0;
      std::map<std::string, std::vector<float>> expected;
      for (const nn::Parameter& p : model.parameters()) {
        std::vector<float> values = device.download(p.value, p.count);
        if (is_weight(p)) {
          for (float& v : values) v = std::round(v * 8) / 8;  // so that many are equal, and some are zero, or −0
          set(device, p, values);
          std::vector<std::size_t> order(p.count);
          std::iota(order.begin(), order.end(), std::size_t(0));
          std::stable_sort(order.begin(), order.end(),
                           [&](std::size_t a, std::size_t b) { return std::fabs(values[a]) < std::fabs(values[b]); });
          order.resize(p.count * percent / 100);
          for (const std::size_t i : order) values[i] = 0.0f;
          masked += order.size();
        }
        expected[p.name] = values;
      }
      Mask mask(device.context, model, percent);
      EXPECT_EQ(mask.masked(), masked);
      std::size_t zeros = 0;
      for (const nn::Parameter& p : model.parameters()) {
        EXPECT_TRUE(same_bits(device.download(p.value, p.count), expected[p.name])) << p.name << ", " << percent;
        if (is_weight(p)) zeros += std::size_t(std::count(expected[p.name].begin(), expected[p.name].end(), 0.0f));
      }
      EXPECT_EQ(mask.zeros(device.context), zeros);
    }
}

TEST_P(Masks, KeepZerosThroughTraining) {
  for (const NetworkSpec& spec : {basic(), squeezed()}) {
    Network model(device.context, spec, 3, true);
    Mask mask(device.context, model, 80);
    const auto zeros_of = [&](const nn::Parameter& p) {
      const std::vector<float> values = device.download(p.value, p.count);
      return std::size_t(std::count(values.begin(), values.end(), 0.0f));
    };
    std::vector<std::vector<float>> before;
    for (const nn::Parameter& p : model.parameters()) before.push_back(device.download(p.value, p.count));
    nn::Optimizer<float> optimizer(device.context, model.parameters(), {}, {.adamw = {.lr = 1e-2f}});
    for (unsigned step = 0; step < 3; ++step) {
      model.train_step(device.context, batch(device, spec, step), kSize, optimizer);
      EXPECT_LT(mask.zeros(device.context), mask.masked()) << "the optimizer moves zeros, too";
      mask.apply(device.context);
      EXPECT_EQ(mask.zeros(device.context), mask.masked());
    }
    std::size_t t = 0;
    for (const nn::Parameter& p : model.parameters()) {
      const std::vector<float>&old = before[t++], now = device.download(p.value, p.count);
      if (!is_weight(p)) continue;
      EXPECT_EQ(zeros_of(p), p.count * 80 / 100) << p.name;
      for (std::size_t i = 0; i < now.size(); ++i) ASSERT_EQ(old[i] == 0.0f, now[i] == 0.0f) << p.name << " " << i;
    }
  }
}

TEST(Mask, CostsAByteForEachWeight) {
  for (const NetworkSpec& spec : {basic(), bottleneck(), separable(), squeezed(), segmenter(),
                                  nn::network_of(nn::parse_resnet("resnet:3-8"), {.shared = true})}) {
    Device device;
    Network model(device.context, spec, 3, false);
    const ByCategory before = device.ledger.live_by_category();
    const Mask mask(device.context, model, 50);
    ByCategory expected = before;
    expected[Category::parameters] += mask_bytes(spec);
    EXPECT_EQ(device.ledger.live_by_category(), expected) << spec.name;
    device.ledger.reset_peak();
    mask.zeros(device.context);
    EXPECT_EQ(device.ledger.peak_bytes(), device.ledger.live_bytes() + kCountBytes);
  }
}

TEST(Mask, OfEverythingIsRefused) {
  Device device;
  Network model(device.context, basic(), 3, false);
  const std::uint64_t before = model.fingerprint(device.context);
  EXPECT_EQ(refusal([&] { Mask(device.context, model, 100); }), kNothingLeft);
  EXPECT_EQ(model.fingerprint(device.context), before);
}

TEST(Mask, SurvivesNumbersThatAreNone) {
  Device device;
  Network model(device.context, squeezed(), 3, false);
  const nn::Parameter p = named(by_name(model.parameters()), "head weight");
  std::vector<float> values(p.count, 1.0f);
  values[0] = NAN, values[1] = INFINITY, values[2] = 0.5f, values[5] = -0.25f;
  set(device, p, values);
  Mask mask(device.context, model, 10);  // three of its 36
  const std::vector<float> now = device.download(p.value, p.count);
  EXPECT_TRUE(std::isnan(now[0]) && std::isinf(now[1]));
  for (std::size_t i = 2; i < now.size(); ++i) EXPECT_EQ(now[i], i == 2 || i == 3 || i == 5 ? 0.0f : 1.0f) << i;
}

}  // namespace
