// The same tokens and the same bits of logits, whatever the schedule: contiguous, paged, with shared prefixes,
// preempted, in steps of any size, after any allocation that failed.

#include "small_decoder.h"

namespace {

using namespace oomlab;
using namespace oomlab::test;

struct Expected {
  std::vector<std::vector<int>> answers;
  std::vector<Serving<float>::Logits> logits;
};
// Every request by itself, in one block, its prompt in one step.
Expected one_by_one(const Decoder& decoder, const std::vector<Request>& requests, std::optional<DType> cache_dtype) {
  Expected expected;
  for (const Request& request : without_groups(requests)) {
    Server server(decoder, {&request, 1},
                  {.block_tokens = kLongestHere, .most_rows = kLongestHere, .cache_dtype = cache_dtype});
    server.serving.run();
    expected.answers.push_back(server.serving.answers()[0]);
    expected.logits.push_back(server.logits[0]);
  }
  return expected;
}
void expect_same(const Expected& expected, const std::vector<std::vector<int>>& answers,
                 const std::vector<Serving<float>::Logits>& logits, const std::string& what) {
  ASSERT_EQ(answers, expected.answers) << what;
  for (std::size_t r = 0; r < logits.size(); ++r) {
    ASSERT_EQ(logits[r].size(), expected.logits[r].size()) << what;
    for (std::size_t i = 0; i < logits[r].size(); ++i)
      ASSERT_TRUE(same_bits(logits[r][i], expected.logits[r][i])) << what << ", request " << r << ", token " << i;
  }
}
std::size_t blocks_of_longest(const std::vector<Request>& requests, std::size_t block_tokens) {
  std::size_t most = 0;
  for (const Request& r : requests) most = std::max(most, (r.lengths().length() + block_tokens - 1) / block_tokens);
  return most;
}

TEST(Schedules, GiveTheSameBits) {
  Device device;
  std::mt19937 random(11);
  std::size_t preemptions = 0, shared = 0;
  for (unsigned set = 0; set < 2 * OOMLAB_ROUNDS; ++set) {
    const Decoder decoder(device, small_spec(set % 2));
    const std::size_t before = device.ledger.live_bytes();
    const std::vector<Request> requests = small_requests(set, decoder.spec.vocabulary);
    const std::optional<DType> cache_dtype = set % 5 == 4 ? std::optional(DType::int8) : std::nullopt;
    const Expected expected = one_by_one(decoder, requests, cache_dtype);
    for (unsigned schedule = 0; schedule < 10; ++schedule) {
      ServerSetup way{.most_rows = 1 + random() % 12, .cache_dtype = cache_dtype};
      way.block_tokens = schedule == 0 ? kLongestHere : 1 + random() % 9;
      if (random() % 3) way.blocks = blocks_of_longest(requests, way.block_tokens) + random() % 4;
      const bool share = schedule > 1;
      const std::vector<Request> asked = share ? requests : without_groups(requests);
      Server server(decoder, asked, way);
      const std::size_t without_blocks = server.ledger.live_bytes();
      server.serving.run();
      expect_same(expected, server.serving.answers(), server.logits,
                  "set " + std::to_string(set) + ", schedule " + std::to_string(schedule));
      preemptions += server.serving.counts().preemptions;
      EXPECT_EQ(server.cache.used_blocks(), 0u);
      EXPECT_EQ(server.cache.requests(), 0u);
      server.cache.trim();
      EXPECT_EQ(server.ledger.live_bytes(), without_blocks);

      const ServingSchedule plan = simulate_serving(lengths_of(asked), way.block_tokens, way.blocks, way.most_rows);
      EXPECT_TRUE(plan.possible);
      EXPECT_TRUE(plan.counts == server.serving.counts()) << set << ", " << schedule;
      EXPECT_EQ(server.ledger.peak_by_category(), server.predicted(decoder.spec, kLongestHere, plan.max_blocks))
          << set << ", " << schedule;
      const ServingSchedule apart =
          simulate_serving(lengths_of(without_groups(asked)), way.block_tokens, way.blocks, way.most_rows);
      shared += plan.counts.rows < apart.counts.rows;
    }
    EXPECT_EQ(device.ledger.live_bytes(), before);
  }
  EXPECT_GT(preemptions, 10u * OOMLAB_ROUNDS);
  EXPECT_GT(shared, 2u * OOMLAB_ROUNDS);
}

// Refuses allocation number `refused`, from 1, once.
class RefusesOne final : public MemoryResource {
 public:
  explicit RefusesOne(MemoryResource& upstream) : upstream_(upstream) {}
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    if (++seen == refused) throw OutOfMemory(OutOfMemoryReport());
    return upstream_.allocate(bytes, stream);
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    upstream_.deallocate(address, bytes, stream);
  }
  std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }
  std::size_t seen = 0, refused = 0;

 private:
  MemoryResource& upstream_;
};

TEST(Schedules, AnyBlockMayBeRefused) {
  Device device;
  const Decoder decoder(device, small_spec(true));
  const std::vector<Request> requests = small_requests(3, decoder.spec.vocabulary);
  const Expected expected = one_by_one(decoder, requests, std::nullopt);
  const CacheShape shape = cache_shape(DType::fp32, decoder.spec, {.block_tokens = 3});
  std::size_t blocks = 1, thrown = 0, preempted = 0;
  const std::size_t step = OOMLAB_ROUNDS < 10 ? 3 : 1;
  for (std::size_t refused = 1; refused <= blocks; refused += step) {
    CudaResource resource;
    RefusesOne refuses(resource);
    Ledger ledger;
    Context context(refuses, ledger, kGranule);
    {
      Generation<float> generation(context, decoder.spec, decoder.weights(), shape, 6, kLongestHere);
      KvCache cache(context, shape, /*careful=*/true);
      std::vector<Serving<float>::Logits> logits;
      Serving<float> serving(context, generation, cache, requests, 6, &logits);
      refuses.seen = 0, refuses.refused = refused;
      bool more = true;
      while (more) {
        const std::size_t live = ledger.live_bytes(), used = cache.used_blocks();
        try {
          more = serving.step();
        } catch (const OutOfMemory&) {
          ++thrown;
          EXPECT_EQ(ledger.live_bytes(), live);
          EXPECT_EQ(cache.used_blocks(), used);
        }
      }
      blocks = std::max(blocks, refuses.seen);
      preempted += serving.counts().preemptions;
      expect_same(expected, serving.answers(), logits, "refused: " + std::to_string(refused));
      EXPECT_EQ(cache.used_blocks(), 0u);
    }
    EXPECT_EQ(ledger.live_bytes(), kGranule);
  }
  EXPECT_GT(blocks, 5u);
  EXPECT_GT(thrown, 0u);
  EXPECT_GT(preempted, 0u);
}

TEST(Schedules, ARequestThatDoesNotFitAloneIsOutOfMemory) {
  Device device;
  const Decoder decoder(device, small_spec(false));
  std::vector<Request> requests(2);
  requests[0] = {.prompt = {1, 2, 3}, .answer = 2};
  requests[1] = {.prompt = {4, 5}, .answer = 20};
  Server server(decoder, requests, {.block_tokens = 4, .blocks = 3});
  const auto run = [&] { server.serving.run(); };
  EXPECT_THROW(run(), OutOfMemory);
  EXPECT_EQ(server.serving.answers()[0].size(), 2u);
  const std::vector<int> so_far = server.serving.answers()[1];
  EXPECT_EQ(so_far.size(), 11u);  // tokens 2 … 12 have a place
  EXPECT_THROW(run(), OutOfMemory);
  EXPECT_EQ(server.serving.answers()[1], so_far);
  EXPECT_FALSE(simulate_serving(lengths_of(requests), 4, 3, 8).possible);
}

}  // namespace
