// The figures that the claims of chapter 06 stand on.

#include "claims.h"

#include <gtest/gtest.h>

namespace {

using namespace oomlab;
using namespace oomlab::caching_allocator;

constexpr std::size_t kMiB = std::size_t(1) << 20;

TEST(Requests, AreThoseOfTheModel) {
  const nn::TransformerSpec spec = nn::parse_transformer("gpt2");
  const double replayed = double(gpt2_requests().varying.live_peak),
               predicted = double(Rounds::predicted(spec, kClaimSeq, kClaimBatch).total());
  EXPECT_NEAR(replayed / predicted, 1, 0.005);
  EXPECT_EQ(gpt2_requests().one_length.live_peak, gpt2_requests().varying.live_peak) << "the longest text decides";
}

TEST(Requests, SurviveTheSmallestLimitAndNotLess) {
  const nn::TransformerSpec spec = nn::parse_transformer("gpt:2-2-64");
  const std::vector<std::size_t> lengths = claim_lengths(true);
  const std::size_t limit = smallest_limit(spec, 4, lengths);
  EXPECT_TRUE(replay(spec, 4, lengths, limit).survived);
  EXPECT_FALSE(replay(spec, 4, lengths, limit - 2 * kMiB).survived);
  EXPECT_GE(limit, replay(spec, 4, lengths).live_peak);
}

TEST(EmptyCache, AfterEachStepAsksTheDriverAgain) {
  const Replayed never = gpt2_requests().varying, each_step = gpt2_requests().emptied_each_step;
  EXPECT_EQ(never.live_peak, each_step.live_peak);
  EXPECT_GT(each_step.driver_calls, 5 * never.driver_calls);
}

TEST(Printout, HasMebibytes) {
  const Printout p = printout();
  EXPECT_EQ(p.x, 8'388'608u);
  EXPECT_EQ(p.both, 9 * kMiB);
  EXPECT_EQ(p.reserved, 20 * kMiB);
  EXPECT_EQ(p.without_x, 20 * kMiB) << "the product is in the same segment";
  EXPECT_EQ(p.without_both, 0u);
}

TEST(Freeing, IsWhenTheLastOwnerGoes) {
  EXPECT_EQ(chain_peak(false), 12 * kMiB);
  EXPECT_EQ(chain_peak(true), 8 * kMiB);
  EXPECT_EQ(two_tensors(false).after_del, 0u);
  EXPECT_EQ(two_tensors(true).after_del, 8 * kMiB);
  EXPECT_EQ(two_tensors(true).after_collect, 0u);
}

TEST(AMessage, OfFragmentation) {
  OutOfMemoryReport report = message_of_a_24_gib_card();
  EXPECT_EQ(report.cause(), OutOfMemoryReport::Cause::fragmented);
  EXPECT_NEAR(double(report.reserved - report.live) / (1 << 30), 2.52, 0.005);
  EXPECT_NEAR(double(report.device_total - report.reserved - report.device_free) / (1 << 30), 1.68, 0.005);
  report.live = report.reserved;
  EXPECT_NE(report.cause(), OutOfMemoryReport::Cause::fragmented) << "nothing is cached";
}

}  // namespace
