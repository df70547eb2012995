// The schedule on paper, the server that computes nothing, and the one that does: the same figures and the same bytes.

#include <cstdlib>
#include <iostream>

#include "cuda/backend.h"
#include "cuda/dtype_of.h"
#include "small_decoder.h"

namespace {

using namespace oomlab;
using namespace oomlab::test;

struct Stream {
  nn::TransformerSpec spec;
  std::vector<Request> requests;
  std::size_t longest, most_rows, budget;
};
Stream published() {
  const nn::TransformerSpec spec = nn::parse_transformer("llama-3.1-8b");
  return {spec, make_requests(24, kLongest, spec.vocabulary), kLongest, 256, std::size_t(15900) << 20};
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

TEST(ServingSchedule, IsTheScheduleOfTheServer) {
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
        const ServingSchedule plan = simulate_serving(lengths_of(requests), block_tokens, way.blocks, way.most_rows);
        EXPECT_TRUE(plan.counts == server.serving.counts()) << block_tokens << ", " << places;
        EXPECT_EQ(plan.max_blocks, server.cache.most_blocks()) << block_tokens << ", " << places;
        EXPECT_EQ(server.ledger.peak_by_category(), server.predicted(decoder.spec, 60, plan.max_blocks))
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
  const CacheShape shape = cache_shape(kDTypeOf<T>, s.spec, {.block_tokens = block_tokens});
  Generation<T> generation(context, s.spec, placed.weights(), shape, s.most_rows, s.longest);
  KvCache cache(context, shape);
  Serving<T> serving(context, generation, cache, s.requests, s.most_rows);
  serving.run();
  const std::uint64_t blocks =
      blocks_within(s.budget, kDTypeOf<T>, s.spec, shape, s.most_rows, s.longest, /*others=*/kGranule);
  const ServingSchedule plan = simulate_serving(lengths_of(s.requests), block_tokens, blocks, s.most_rows);
  ByCategory expected = server_bytes(kDTypeOf<T>, s.spec, shape, s.most_rows, s.longest, plan.max_blocks);
  expected[Category::workspace] += kGranule;
  return plan.possible && plan.counts == serving.counts() && ledger.peak_by_category() == expected;
}
TEST(ServingScheduleDeathTest, IsTheScheduleOfAServerThatOnlyPlans) {
  if (std::string(backend_name()) != "host") GTEST_SKIP() << "only the host runtime plans";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Stream s = published();
  for (const std::size_t block_tokens : {std::size_t(16), s.longest})
    EXPECT_EXIT(std::_Exit(plans_as_predicted<__nv_bfloat16>(s, block_tokens) ? 0 : 1), testing::ExitedWithCode(0), "");
}

}  // namespace
