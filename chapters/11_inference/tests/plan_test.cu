// The walk on paper, the scheduler that computes nothing, and the one that does: the same figures and the same bytes.
// And what they say: how many more requests there are at a time in pages.

#include <cstdlib>
#include <iostream>

#include "cuda/backend.h"
#include "small_decoder.h"

namespace {

using namespace oomlab;
using namespace oomlab::test;

struct Stream {
  nn::TransformerSpec spec;
  std::vector<Request> requests;
  std::size_t longest, most_rows, budget;
};
template <class T>
ServingPlan walk(const Stream& s, std::size_t block_tokens) {
  const CacheShape shape = cache_shape<T>(s.spec.layers, s.spec.keys(), s.spec.depth(), block_tokens);
  return plan_serving(s.requests, block_tokens,
                      blocks_within<T>(s.budget, s.spec, shape, s.most_rows, s.longest, kGranule), s.most_rows);
}
template <class T>
Stream stream(const char* model, std::size_t requests, std::size_t longest, std::size_t most_rows, std::size_t budget) {
  const nn::TransformerSpec spec = nn::parse_transformer(model);
  return {spec, make_requests(requests, longest, spec.vocabulary), longest, most_rows, budget};
}
Stream published() { return stream<__nv_bfloat16>("llama-3.1-8b", 1024, kLongest, 256, std::size_t(20) << 30); }
Stream small() { return stream<float>("bytes-llama", 256, kLongest, 256, std::size_t(16) << 20); }

TEST(Requests, AreThirtyPercentOfTheLongestOnes) {
  const std::vector<Request> requests = make_requests(20000, kLongest, 256);
  double sum = 0;
  std::size_t longest = 0;
  for (const Request& r : requests) {
    ASSERT_GE(r.prompt.size(), r.length() / 4);
    ASSERT_GE(r.answer, 1u);
    ASSERT_GE(r.length(), kLongest / 15);
    sum += double(r.length());
    longest = std::max(longest, r.length());
  }
  EXPECT_NEAR(sum / double(requests.size()) / double(kLongest), 0.3, 0.003);
  EXPECT_LE(longest, kLongest);
  EXPECT_GT(longest, kLongest * 9 / 10);
  // The first ones of the published stream.
  EXPECT_EQ(requests[0].prompt.size(), 401u);
  EXPECT_EQ(requests[0].answer, 249u);
}

TEST(Requests, OfAGroupBeginAlike) {
  const std::vector<Request> requests = make_requests(10, 300, 256, 5, 4);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const Request& first = requests[r / 4 * 4];
    EXPECT_EQ(requests[r].group, r / 4 * 4 + 1);
    EXPECT_EQ(requests[r].shared, first.shared);
    EXPECT_GT(first.shared, 0u);
    EXPECT_LT(first.shared, requests[r].prompt.size());
    EXPECT_TRUE(std::equal(first.prompt.begin(), first.prompt.begin() + static_cast<std::ptrdiff_t>(first.shared),
                           requests[r].prompt.begin()));
  }
}

TEST(ServingPlan, PagesServeMoreRequestsAtATime) {
  for (const bool large : {true, false}) {
    const Stream s = large ? published() : small();
    const auto plan = [&](std::size_t block_tokens) {
      return large ? walk<__nv_bfloat16>(s, block_tokens) : walk<float>(s, block_tokens);
    };
    const ServingPlan contiguous = plan(s.longest), paged = plan(16);
    ASSERT_TRUE(contiguous.possible && paged.possible);
    std::cout << s.spec.name << ": " << contiguous.counts.most_requests << " and " << paged.counts.most_requests
              << " requests at a time at most, " << contiguous.counts.mean_requests() << " and "
              << paged.counts.mean_requests() << " on the average; waste " << contiguous.counts.waste() << " and "
              << paged.counts.waste() << " %\n";
    EXPECT_EQ(contiguous.counts.most_requests, contiguous.most_blocks);
    EXPECT_EQ(contiguous.counts.preemptions, 0u);
    EXPECT_GE(double(paged.counts.most_requests), 2.5 * double(contiguous.counts.most_requests));
    EXPECT_GE(paged.counts.mean_requests(), 2.5 * contiguous.counts.mean_requests());
    EXPECT_GT(contiguous.counts.waste(), 60);
    EXPECT_LT(paged.counts.waste(), 4);
  }
}

// One request alone, in steps of one row: written out.
TEST(ServingPlan, WastesWhatTheFormulaSays) {
  for (const std::size_t block_tokens : {1, 4, 7, 64}) {
    const std::vector<Request> requests{{.prompt = std::vector<int>(10), .answer = 21}};
    std::size_t reserved = 0, used = 0;
    for (std::size_t token = 1; token <= 30; ++token) {
      const std::size_t known = std::max<std::size_t>(10, token);
      reserved += (known + block_tokens - 1) / block_tokens * block_tokens;
      used += token;
    }
    const ServingPlan plan = plan_serving(requests, block_tokens, kUnlimited, 1);
    EXPECT_EQ(plan.counts.steps, 30u);
    EXPECT_EQ(plan.counts.rows, 30u);
    EXPECT_EQ(plan.counts.answered, 21u);
    EXPECT_EQ(plan.counts.reserved, reserved);
    EXPECT_EQ(plan.counts.used, used);
    EXPECT_DOUBLE_EQ(plan.counts.waste(), 100.0 * double(reserved - used) / double(reserved));
    EXPECT_EQ(plan.most_blocks, (30 + block_tokens - 1) / block_tokens);
  }
}

TEST(ServingPlan, IsTheScheduleOfTheServer) {
  Device device;
  const Decoder decoder(device, small_spec(true));
  for (const std::size_t group : {1, 3}) {
    const std::vector<Request> requests = make_requests(12, 60, decoder.spec.vocabulary, 3, group);
    for (const std::size_t block_tokens : {1, 5, 16, 60})
      for (const std::size_t places : {70, 130, 1000}) {
        if (OOMLAB_ROUNDS < 10 && (block_tokens == 1 || places == 1000)) continue;
        const ServerSetup way{block_tokens, 16, places / block_tokens + 1};
        Server server(decoder, requests, way, 60, /*careful=*/false, /*with_logits=*/false);
        server.serving.run();
        const ServingPlan plan = plan_serving(requests, block_tokens, way.blocks, way.most_rows);
        EXPECT_TRUE(plan.counts == server.serving.counts()) << block_tokens << ", " << places;
        EXPECT_EQ(plan.most_blocks, server.cache.most_blocks()) << block_tokens << ", " << places;
        EXPECT_EQ(server.ledger.peak_by_category(), server.predicted(decoder.spec, 60, plan.most_blocks))
            << block_tokens << ", " << places;
      }
  }
}

// In a process of its own, which from then on plans.
template <class T>
bool plans_as_predicted(const Stream& s, std::size_t block_tokens) {
  if (!enable_planning()) return false;
  CudaResource resource;
  LimitingResource limit(resource, s.budget);
  Ledger ledger;
  Context context(limit, ledger, kGranule);
  const PlacedWeights<T> placed(context, s.spec, 0, [](Context&, std::size_t, T*, std::size_t) {});
  const CacheShape shape = cache_shape<T>(s.spec.layers, s.spec.keys(), s.spec.depth(), block_tokens);
  Generation<T> generation(context, s.spec, placed.weights(), shape, s.most_rows, s.longest);
  KvCache cache(context, shape);
  Serving<T> serving(context, generation, cache, s.requests, s.most_rows);
  serving.run();
  const ServingPlan plan = walk<T>(s, block_tokens);
  ByCategory expected = serving_bytes<T>(s.spec, shape, s.most_rows, s.longest, plan.most_blocks);
  expected[Category::workspace] += kGranule;
  return plan.possible && plan.counts == serving.counts() && ledger.peak_by_category() == expected;
}
TEST(ServingPlanDeathTest, IsTheScheduleOfAServerThatOnlyPlans) {
  if (std::string(backend_name()) != "host") GTEST_SKIP() << "only the host runtime plans";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Stream s = published();
  s.requests.resize(24);
  s.budget = std::size_t(15900) << 20;
  for (const std::size_t block_tokens : {std::size_t(16), s.longest})
    EXPECT_EXIT(std::_Exit(plans_as_predicted<__nv_bfloat16>(s, block_tokens) ? 0 : 1), testing::ExitedWithCode(0), "");
}

}  // namespace
