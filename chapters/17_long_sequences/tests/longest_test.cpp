// The ladder, and the longest sequence of each rung, by plan alone.

#include <gtest/gtest.h>

#include "claims.h"

namespace {

using namespace oomlab;
using namespace oomlab::long_sequences;

std::uint64_t peak_of(std::size_t tokens, const Levers& levers) {
  return plan_of(llama_8b(tokens), levers).peak.total();
}

// The last rung, as the command line says it.
TEST(Ladder, EndsWithEveryLeverOfALongSequence) {
  EXPECT_EQ(
      levers_of_row(kHalf),
      plan::parse_levers("--precision bf16 --attention fused --loss chunked --checkpoint 1 --checkpoints host --lean "
                         "--tiles-mlp 8 --offload --stream"));
  EXPECT_EQ(levers_of_row(kSequence), on_devices(levers_of_row(kHalf), 2, true));
}

TEST(Ladder, EachRungNeedsLessThanTheOneAbove) {
  std::uint64_t above = UINT64_MAX;
  for (const Row& row : ladder()) {
    const std::uint64_t peak = peak_of(131'072, row.levers);
    EXPECT_LT(peak, above) << row.name;
    above = peak;
  }
}

// What is printed is the last length that fits: a step further does not.
TEST(Longest, IsTheLastOneThatFits) {
  const nn::TransformerSpec spec = of_any_length(nn::parse_transformer("llama-3.1-8b"));
  for (const double gb : {24.0, 80.0}) {
    std::size_t above = 0;
    for (const Row& row : ladder()) {
      const std::size_t tokens = longest(spec, row.levers, gb);
      EXPECT_EQ(tokens % kTokens, 0U);
      EXPECT_GE(tokens, above) << row.name;
      EXPECT_TRUE(tokens == 0 || double(peak_of(tokens, row.levers)) <= 0.95e9 * gb) << row.name;
      EXPECT_GT(double(peak_of(tokens + kTokens, row.levers)), 0.95e9 * gb) << row.name;
      above = tokens;
    }
  }
}

// ALST (2025) trains 500,000 tokens on one card of 80 GB.
TEST(Longest, IsFartherThanWhatIsPublishedOnOneCard) {
  const nn::TransformerSpec spec = of_any_length(nn::parse_transformer("llama-3.1-8b"));
  EXPECT_GE(longest(spec, levers_of_row(kHalf), 80), 500'000U);
  // Eight cards take more than one.
  EXPECT_GE(longest(spec, on_devices(levers_of_row(kHalf), 8, true), 80), 2 * longest(spec, levers_of_row(kHalf), 80));
}

}  // namespace
