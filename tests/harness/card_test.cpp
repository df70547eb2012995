// Cards, and the least time that a step takes on one.

#include "harness/card.h"

#include <gtest/gtest.h>

#include <set>

#include "harness/result.h"
#include "read_json.h"

namespace {

using namespace oomlab;
using nlohmann::json;
using oomlab::test::read_json;

constexpr std::size_t kMiB = std::size_t(1) << 20;

TEST(Cards, HaveNamesOfTheirOwnAndPlausibleFigures) {
  std::set<std::string> names;
  for (const Card& card : cards()) {
    EXPECT_TRUE(names.insert(card.name).second) << card.name;
    EXPECT_EQ(find_card(card.name), &card);
    EXPECT_NE(card_names().find(card.name), std::string::npos);
    // Of every card since Volta: 8 to 200 operations a byte in FP32, tensor cores twice as fast at least.
    EXPECT_GT(card.fp32_tflops * 1e3 / card.gb_per_s, 8) << card.name;
    EXPECT_LT(card.fp32_tflops * 1e3 / card.gb_per_s, 200) << card.name;
    EXPECT_GE(card.fp16_tflops, 1.99 * card.fp32_tflops) << card.name;
    EXPECT_LE(card.l2_mib * kMiB, 0.02 * card.memory_gb * 1e9) << card.name;
  }
  EXPECT_EQ(find_card("H100 SXM"), find_card("h100-sxm"));
  EXPECT_EQ(find_card("h100"), nullptr);
  EXPECT_EQ(find_card(""), nullptr);
}

TEST(Cards, AreKnownByWhatCudaCallsThem) {
  const auto name_of = [](const char* device, std::size_t mib) {
    const Card* const card = card_of_device(device, mib * kMiB);
    return card ? std::string(card->name) : "unknown";
  };
  EXPECT_EQ(name_of("NVIDIA H100 80GB HBM3", 81'079), "h100-sxm");
  EXPECT_EQ(name_of("NVIDIA H100 PCIe", 81'079), "h100-pcie");
  EXPECT_EQ(name_of("Tesla T4", 14'930), "t4");
  EXPECT_EQ(name_of("GeForce RTX 2080 Ti", 11'019), "rtx-2080-ti");  // of drivers before 2021
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 2080 Ti", 11'019), "rtx-2080-ti");
  EXPECT_EQ(name_of("Tesla V100-SXM2-32GB", 32'510), "v100-32gb");
  EXPECT_EQ(name_of("NVIDIA A10", 22'600), "a10");
  EXPECT_EQ(name_of("NVIDIA B200", 182'632), "b200");
  // Others of the same name, slices, and what nobody knows.
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 3080", 9'995), "rtx-3080");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 3080", 12'044), "unknown");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 3080 Laptop GPU", 9'995), "unknown");
  EXPECT_EQ(name_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9'856), "unknown");
  EXPECT_EQ(name_of("NVIDIA H100 80GB HBM3", 9'856), "unknown");
  EXPECT_EQ(name_of("host", 16'384), "unknown");
}

// 100 GB/s, 10 MiB of cache, 2 and 8 TFLOP/s.
constexpr Card kSmall{"small", "Small", "Small", 1, 100, 10, 2, 8};

ByCategory bytes_of(std::size_t parameters, std::size_t gradients, std::size_t optimizer, std::size_t activations) {
  return ByCategory{{parameters, gradients, optimizer, activations}};
}

TEST(LeastTimes, AreOperationsOverPeakOrBytesOverBandwidth) {
  // 60 + 140, 120 and 220 MiB wait, of which 20 may be in the cache each time: 180 + 100 + 200, written and read.
  const LeastTime least =
      least_time(kSmall, Arithmetic::fp32, 4e9, bytes_of(60 * kMiB, 120 * kMiB, 140 * kMiB, 220 * kMiB)).value();
  EXPECT_DOUBLE_EQ(least.computing_seconds, 2e-3);
  EXPECT_DOUBLE_EQ(least.moved_bytes, 960.0 * kMiB);
  EXPECT_DOUBLE_EQ(least.moving_seconds, 960.0 * kMiB / 1e11);
  EXPECT_DOUBLE_EQ(least.seconds(), 960.0 * kMiB / 1e11);
  const LeastTime computing = least_time(kSmall, Arithmetic::fp32, 4e12, bytes_of(0, 0, 0, 0)).value();
  EXPECT_DOUBLE_EQ(computing.seconds(), 2);
  EXPECT_DOUBLE_EQ(least_time(kSmall, Arithmetic::fp16, 4e12, {}).value().seconds(), 0.5);
  EXPECT_DOUBLE_EQ(least_time(kSmall, Arithmetic::bf16, 4e12, {}).value().seconds(), 0.5);
  Card old = kSmall;
  old.has_bf16 = false;
  EXPECT_FALSE(least_time(old, Arithmetic::bf16, 4e12, {}));
  EXPECT_TRUE(least_time(old, Arithmetic::fp16, 4e12, {}));
}

TEST(LeastTimes, WhatFitsIntoTheCacheNeedNotMove) {
  const std::size_t fits = 20 * kMiB;
  EXPECT_EQ(least_time(kSmall, Arithmetic::fp32, 0, bytes_of(fits, fits, 0, fits)).value().seconds(), 0);
  EXPECT_GT(least_time(kSmall, Arithmetic::fp32, 0, bytes_of(fits, fits, 512, fits)).value().seconds(), 0);
}

TEST(LeastTimes, HalveOnACardTwiceAsFast) {
  Card twice = kSmall;
  twice.gb_per_s *= 2, twice.fp32_tflops *= 2, twice.fp16_tflops *= 2;
  for (const double flops : {1e3, 1e9, 1e15})
    for (const std::size_t mib : {0, 1, 100, 100'000}) {
      const ByCategory bytes = bytes_of(mib * kMiB, mib * kMiB, 2 * mib * kMiB, mib * kMiB);
      for (const Arithmetic arithmetic : {Arithmetic::fp32, Arithmetic::fp16})
        EXPECT_DOUBLE_EQ(2 * least_time(twice, arithmetic, flops, bytes).value().seconds(),
                         least_time(kSmall, arithmetic, flops, bytes).value().seconds());
    }
}

TEST(LeastTimes, GrowWithTheWork) {
  for (const Card& card : cards()) {
    const ByCategory bytes{{kMiB, kMiB, kMiB, kMiB, kMiB, kMiB}};
    const LeastTime least = least_time(card, Arithmetic::fp32, 1e6, bytes).value();
    EXPECT_GT(least_time(card, Arithmetic::fp32, 2e6, bytes).value().computing_seconds, least.computing_seconds);
    for (const Category c : {Category::parameters, Category::gradients, Category::optimizer, Category::activations}) {
      ByCategory more = bytes;
      more[c] += 1000 * kMiB;
      EXPECT_GT(least_time(card, Arithmetic::fp32, 1e6, more).value().moving_seconds, least.moving_seconds)
          << card.name;
    }
    for (const Category c : {Category::workspace, Category::data}) {  // nobody says that they are read
      ByCategory more = bytes;
      more[c] += 1000 * kMiB;
      EXPECT_EQ(least_time(card, Arithmetic::fp32, 1e6, more).value().moving_seconds, least.moving_seconds);
    }
  }
}

// A run on a GPU that takes twice the bound, one whose operations are not known, and a team.
RunResult measured(const Card* card) {
  RunResult run;
  run.card = card;
  VariantResult known;
  known.name = "known";
  known.batch = 8;
  known.flops = 4e12;  // 2 s on kSmall
  known.samples_per_second = {1, 2, 3};
  VariantResult unknown;
  unknown.name = "unknown";
  VariantResult team;
  team.name = "team";
  team.flops = 3e12;
  team.ranks = {{.rank = 0, .predicted = bytes_of(0, 0, 0, 100'020 * kMiB), .at_peak = {}, .flops = 1e12},
                {.rank = 1, .predicted = {}, .at_peak = {}, .flops = 3e12}};
  run.variants = {known, unknown, team};
  return run;
}

TEST(LeastTimes, StandBesideMeasuredSteps) {
  const std::string table = least_time_table(measured(&kSmall));
  EXPECT_NE(
      table.find("known                  4.0 TFLOP      2.0 s     0.0 B  0.0 us     2.0 s     4.0 s          50\n"),
      std::string::npos)
      << table;
  EXPECT_NE(
      table.find("unknown                        -          -         -       -         -         -           -\n"),
      std::string::npos)
      << table;
  EXPECT_NE(
      table.find("team                   1.0 TFLOP   500.0 ms  209.7 GB   2.1 s     2.1 s         -           -\n"),
      std::string::npos)
      << table;
  EXPECT_NE(table.find("on Small: 2 TFLOP/s in FP32, 8 in FP16 and BF16, 100 GB/s."), std::string::npos) << table;
  EXPECT_EQ(least_time_table(measured(nullptr)), "");
}

TEST(LeastTimes, AreInTheFile) {
  const json rows = read_json(result_json(measured(&kSmall)))["variants"];
  EXPECT_EQ(rows[0]["flops"], 4e12);
  const json& least = rows[0]["least_time"];
  EXPECT_EQ(least["card"], "small");
  EXPECT_EQ(least["seconds"], 2.0);
  EXPECT_EQ(least["computing_seconds"], 2.0);
  EXPECT_EQ(least["moving_seconds"], 0.0);
  EXPECT_EQ(least["share_of_bound"], 0.5);
  EXPECT_FALSE(rows[1].contains("flops"));
  EXPECT_FALSE(rows[1].contains("least_time"));
  // The rank that needs longest: 1.5 s of computing, and 2 x 100,000 MiB of moving, 2.1 s.
  EXPECT_DOUBLE_EQ(rows[2]["least_time"]["seconds"], 200'000.0 * kMiB / 1e11);
  EXPECT_FALSE(rows[2]["least_time"].contains("share_of_bound"));
  const json without = read_json(result_json(measured(nullptr)))["variants"][0];
  EXPECT_FALSE(without.contains("least_time"));
  EXPECT_EQ(without["flops"], 4e12);
}

}  // namespace
