// Host memory in a chapter's table: predicted, measured, and refused by a budget as device memory is.

#include <gtest/gtest.h>

#include "../device.h"
#include "harness/memory_pass.h"
#include "read_json.h"

namespace {

using namespace oomlab;

/// Has `pinned` bytes of pinned host memory, and as many of the device's.
class HostToy final : public Workload {
 public:
  HostToy(Context& context, std::size_t bytes)
      : here_(context.buffer<char>(bytes, Category::parameters, "here")),
        there_(context.pinned<char>(bytes, Category::optimizer, "there")) {}
  void step() override {}
  std::size_t samples_per_step() const override { return 1; }
  double figure() override { return 1; }
  std::uint64_t fingerprint() override { return 1; }

 private:
  DeviceBuffer<char> here_, there_;
};

HostBytes pinned_bytes(std::size_t bytes) {
  HostBytes host;
  host.pinned[Category::optimizer] = round_to_granule(bytes);
  return host;
}

class HostToyTeam final : public Team {
 public:
  HostToyTeam() : Team(2) {}
  std::unique_ptr<Workload> make(Context& context, int rank) override {
    return std::make_unique<HostToy>(context, bytes_of(rank));
  }
  ByCategory predicted(int rank) const override {
    ByCategory bytes;
    bytes[Category::parameters] = round_to_granule(bytes_of(rank));
    return bytes;
  }
  HostBytes predicted_on_host(int rank) const override { return pinned_bytes(bytes_of(rank)); }

 private:
  static std::size_t bytes_of(int rank) { return rank == 0 ? 1000 : 3000; }
};

Variant host_toy(std::size_t bytes, std::size_t predicted_on_host) {
  Variant variant;
  variant.name = "toy";
  variant.batch = 1;
  variant.predicted = [=](std::size_t) {
    ByCategory split;
    split[Category::parameters] = round_to_granule(bytes);
    return split;
  };
  variant.make = [=](Context& context, std::size_t) { return std::make_unique<HostToy>(context, bytes); };
  variant.predicted_on_host = [=](std::size_t) { return pinned_bytes(predicted_on_host); };
  return variant;
}

VariantResult measured(const Variant& variant, std::size_t host_memory) {
  Config config;
  config.budget = kUnlimited;
  config.host_memory = host_memory;
  return run_memory_pass(config, "99_toy", variant, true, nullptr, Progress(true));
}

class OnHost : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_DEVICE(); }
};

TEST_F(OnHost, IsMeasuredBesideThePrediction) {
  const VariantResult right = measured(host_toy(1000, 1000), kUnlimited);
  EXPECT_EQ(right.outcome, VariantResult::Outcome::ok);
  EXPECT_EQ(right.on_host, pinned_bytes(1000));
  EXPECT_TRUE(right.prediction_holds_on_host());
  EXPECT_FALSE(measured(host_toy(1000, 2000), kUnlimited).prediction_holds_on_host());
}

TEST_F(OnHost, ABudgetOfItRefusesAndIsLifted) {
  EXPECT_EQ(measured(host_toy(1000, 1000), 1024).outcome, VariantResult::Outcome::ok);
  const VariantResult refused = measured(host_toy(1000, 1000), 1023);
  EXPECT_EQ(refused.outcome, VariantResult::Outcome::oom);
  ASSERT_TRUE(refused.oom);
  EXPECT_TRUE(refused.oom->on_host && refused.oom->by_limit);
  EXPECT_EQ(refused.oom->limit, 1023u);
  EXPECT_NE(refused.reason.find("OOM on the host: asked for"), std::string::npos) << refused.reason;
  EXPECT_TRUE(refused.measured) << "again, without a budget";
  EXPECT_EQ(refused.on_host, pinned_bytes(1000));

  RunResult result;
  result.config.host_memory = 1023;
  result.variants = {refused};
  const auto json = test::read_json(result_json(result));
  EXPECT_EQ(json["config"]["host_memory_bytes"], 1023);
  EXPECT_EQ(json["variants"][0]["host_memory"]["peak_bytes"], 1024);
  EXPECT_EQ(json["variants"][0]["host_memory"]["predicted_bytes"], 1024);
  EXPECT_TRUE(json["variants"][0]["oom"]["on_host"]);
  EXPECT_NE(comparison_table(result).find("host memory"), std::string::npos);
}

// Ranks share a machine: a budget is for all of them together.
TEST_F(OnHost, OfRanksIsOneBudget) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "one device";
  Variant variant = host_toy(0, 3000);
  variant.ranks = 2;
  variant.team = [](std::size_t) { return std::make_unique<HostToyTeam>(); };
  const VariantResult fits = measured(variant, 1024 + 3072);
  EXPECT_EQ(fits.outcome, VariantResult::Outcome::ok) << fits.reason;
  EXPECT_EQ(fits.on_host, pinned_bytes(3000));
  EXPECT_EQ(fits.on_host_of_all, 1024u + 3072);
  EXPECT_TRUE(fits.prediction_holds_on_host());
  const VariantResult refused = measured(variant, 1024 + 3071);
  EXPECT_EQ(refused.outcome, VariantResult::Outcome::oom);
  EXPECT_TRUE(refused.measured);
}

}  // namespace
