// Serving on paper: bytes by their formulas, and what schedules say: how many more requests there are at a time in pages.

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <vector>

#include "plan/serve/server.h"

namespace {

using namespace oomlab;
using namespace oomlab::serve;

constexpr std::uint64_t kLongest = 2048;

TEST(CacheShape, HasTheBytesOfTheFormula) {
  // 2 · L · Hk · d · E for each token; in 8 bits 2 · L · Hk · (d + 4).
  CacheShape shape{.layers = 32, .kv_heads = 8, .depth = 128, .block_tokens = 16, .dtype = DType::bf16};
  EXPECT_EQ(shape.block_bytes(), 16u * 2 * 32 * 8 * 128 * 2);
  EXPECT_EQ(shape.counted_block_bytes(), std::size_t(2) << 20);
  shape.dtype = DType::int8;
  EXPECT_EQ(shape.block_bytes(), 16u * 2 * 32 * 8 * (128 + 4));
  const CacheShape odd{.layers = 1, .kv_heads = 1, .depth = 3, .block_tokens = 3, .dtype = DType::int8};
  EXPECT_EQ(odd.block_bytes(), 32u + 6 * 4);  // 18 values, and where scales may begin
}

TEST(RequestLengths, AreThirtyPercentOfTheLongestOnes) {
  const std::vector<RequestLengths> requests = request_lengths(20000, kLongest);
  double sum = 0;
  std::uint64_t longest = 0;
  for (const RequestLengths& r : requests) {
    ASSERT_GE(r.prompt, r.length() / 4);
    ASSERT_GE(r.answer, 1u);
    ASSERT_GE(r.length(), kLongest / 15);
    sum += double(r.length());
    longest = std::max(longest, r.length());
  }
  EXPECT_NEAR(sum / double(requests.size()) / double(kLongest), 0.3, 0.003);
  EXPECT_LE(longest, kLongest);
  EXPECT_GT(longest, kLongest * 9 / 10);
  // The first one of the published stream.
  EXPECT_EQ(requests[0].prompt, 401u);
  EXPECT_EQ(requests[0].answer, 249u);
  EXPECT_THROW(request_lengths(1, kShortestLimit - 1), std::invalid_argument);
}

TEST(ServingSchedule, HasMoreRequestsAtATimeInPages) {
  struct Stream {
    const char* model;
    DType dtype;
    std::uint64_t requests, budget;
  };
  for (const Stream& of : {Stream{"llama-3.1-8b", DType::bf16, 1024, std::uint64_t(20) << 30},
                           Stream{"bytes-llama", DType::fp32, 256, std::uint64_t(16) << 20}}) {
    const nn::TransformerSpec spec = nn::parse_transformer(of.model);
    const auto schedule = [&](std::uint64_t block_tokens) {
      return schedule_within(of.budget, of.dtype, spec, {.block_tokens = block_tokens},
                             request_lengths(of.requests, kLongest), kLongest, kGranule);
    };
    const ServingSchedule contiguous = schedule(kLongest), paged = schedule(16);
    ASSERT_TRUE(contiguous.possible && paged.possible);
    std::cout << spec.name << ": " << contiguous.counts.max_requests << " and " << paged.counts.max_requests
              << " requests at a time at most, " << contiguous.counts.mean_requests() << " and "
              << paged.counts.mean_requests() << " on the average; waste " << contiguous.counts.waste() << " and "
              << paged.counts.waste() << " %\n";
    EXPECT_EQ(contiguous.counts.max_requests, contiguous.max_blocks);
    EXPECT_EQ(contiguous.counts.preemptions, 0u);
    EXPECT_GE(double(paged.counts.max_requests), 2.5 * double(contiguous.counts.max_requests));
    EXPECT_GE(paged.counts.mean_requests(), 2.5 * contiguous.counts.mean_requests());
    EXPECT_GT(contiguous.counts.waste(), 60);
    EXPECT_LT(paged.counts.waste(), 4);
  }
}

// One request alone, in steps of one row: written out.
TEST(ServingSchedule, WastesWhatTheFormulaSays) {
  for (const std::uint64_t block_tokens : {1, 4, 7, 64}) {
    const std::vector<RequestLengths> requests{{.prompt = 10, .answer = 21}};
    std::uint64_t reserved = 0, used = 0;
    for (std::uint64_t token = 1; token <= 30; ++token) {
      const std::uint64_t known = std::max<std::uint64_t>(10, token);
      reserved += (known + block_tokens - 1) / block_tokens * block_tokens;
      used += token;
    }
    const ServingSchedule schedule = simulate_serving(requests, block_tokens, kUnlimited, 1);
    EXPECT_EQ(schedule.counts.steps, 30u);
    EXPECT_EQ(schedule.counts.rows, 30u);
    EXPECT_EQ(schedule.counts.answered, 21u);
    EXPECT_EQ(schedule.counts.reserved, reserved);
    EXPECT_EQ(schedule.counts.used, used);
    EXPECT_DOUBLE_EQ(schedule.counts.waste(), 100.0 * double(reserved - used) / double(reserved));
    EXPECT_EQ(schedule.max_blocks, (30 + block_tokens - 1) / block_tokens);
  }
}

TEST(CpuLayers, AreAsFewAsFitTheRestIntoTheBudget) {
  const nn::TransformerSpec spec = nn::parse_transformer("llama-3.1-8b");
  const auto on_device = [&](std::uint64_t cpu_layers) {
    const CacheShape cache = cache_shape(DType::bf16, spec, {.cpu_layers = cpu_layers});
    return server_bytes(DType::bf16, spec, cache, 64, kLongest, 128).total();
  };
  const auto fewest = [&](std::uint64_t budget) {
    return fewest_cpu_layers(budget, DType::bf16, spec, 64, kLongest, 1);
  };
  const std::uint64_t all = on_device(0), layer = on_device(0) - on_device(1);
  EXPECT_EQ(fewest(all), 0u);
  EXPECT_EQ(fewest(all - 1), 1u);
  EXPECT_EQ(fewest(all - 5 * layer), 5u);
  EXPECT_EQ(fewest(on_device(spec.layers)), spec.layers);
  EXPECT_EQ(fewest(on_device(spec.layers) - 1), spec.layers + 1);
  // A layer's weights, and its keys and values of 2,048 tokens.
  const std::uint64_t weights = 2 * (2 * 4096 + 6144 * 4096 + 4096 * 4096 + 3 * std::uint64_t(14336) * 4096);
  EXPECT_EQ(layer, weights + 128 * 16 * 2 * 8 * 128 * 2);
}

}  // namespace
