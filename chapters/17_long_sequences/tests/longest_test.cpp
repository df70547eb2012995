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
  const std::string last = options_of(levers_of_row(kHalf));
  EXPECT_EQ(levers_of_row(kSequence), plan::parse_levers(last + " --tp 2 --sequence-parallel"));
  EXPECT_EQ(levers_of_row(kRing), plan::parse_levers(last + " --cp 2 --zero 3"));
  EXPECT_EQ(levers_of_row(kUlysses), plan::parse_levers(last + " --cp 2 --context ulysses --zero 3"));
}

TEST(Ladder, EachRungNeedsLessThanTheOneAbove) {
  std::uint64_t above = UINT64_MAX;
  for (const Row& row : ladder()) {
    const std::uint64_t peak = peak_of(131'072, row.levers);
    EXPECT_LT(peak, above) << row.name;
    above = peak;
  }
}

// Of a long sequence attention is most of it. Eight cards together have its products, too; the head is whole on each that
// has a part of the layers.
TEST(Ladder, CardsThatShareOutHeadsHaveAllProductsTogether) {
  for (const nn::AttentionForm form : {nn::AttentionForm::tiled, nn::AttentionForm::fused}) {
    Levers levers = levers_of_row(kHalf);
    levers.attention = form;
    const Work work = llama_8b(131'072);
    const auto flops = [&](const Levers& l) { return double(l.ranks.ranks()) * plan_of(work, l).price.flops; };
    const double alone = flops(levers);
    const auto head = double(nn::step_flops_of_each(nn::with_layers(work.spec, 0), 1, work.seq));
    EXPECT_DOUBLE_EQ(flops(by_heads(levers, 8, true)), alone + 7 * head);
    EXPECT_DOUBLE_EQ(flops(by_tokens(levers, 8, nn::ContextForm::ulysses)), alone);
  }
}

// Only rotary positions can be more than the model's own: they have no table.
TEST(Longest, IsBeyondAModelsOwnPositionsWhereTheyHaveNoTable) {
  Config config;
  config.options.set(train::kSeq, std::size_t(200'000));
  config.model = "llama-3.1-8b";
  EXPECT_THROW(train::transformer_of(config), UsageError);
  config.options.set(train::kPositions, std::size_t(200'000));
  EXPECT_EQ(train::transformer_of(config).positions, 200'000U);
  config.model = "gpt2";
  EXPECT_THROW(train::transformer_of(config), UsageError);
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
  // Eight cards take more than one: most, where nothing gathers the tokens.
  const Levers levers = levers_of_row(kHalf);
  const std::size_t on_one = longest(spec, levers, 80);
  EXPECT_GE(longest(spec, by_heads(levers, 8, true), 80), 2 * on_one);
  EXPECT_GE(longest(spec, by_tokens(levers, 8, nn::ContextForm::ring), 80), 6 * on_one);
}

}  // namespace
