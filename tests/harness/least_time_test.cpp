// The least time that a step takes on a card, in tables and result files.

#include <gtest/gtest.h>

#include <string>

#include "../plan/small_card.h"
#include "harness/result.h"
#include "read_json.h"

namespace {

using namespace oomlab;
using nlohmann::json;
using oomlab::test::bytes_of;
using oomlab::test::kMiB;
using oomlab::test::kSmall;
using oomlab::test::read_json;

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
  RunResult chinese = measured(&kSmall);
  chinese.config.chinese = true;
  const std::string text = least_time_table(chinese);
  EXPECT_TRUE(text.starts_with(table.substr(0, table.find("on Small")))) << "the table is the same: " << text;
  EXPECT_NE(text.find("在 Small 上：FP32 2 TFLOP/s，FP16/BF16 8，100 GB/s。"), std::string::npos) << text;
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
