// The books of the cache: what a request has written stays as it is, whatever the others do, and every block is
// somebody's or free.

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "../../../tests/nn/device.h"
#include "kv_cache.h"

namespace {

using namespace oomlab;
using namespace oomlab::inference;

constexpr std::size_t kTokenBytes = 512;
CacheShape shape(std::size_t block_tokens) {  // a layer, a head: a token's key and value are 256 bytes each
  return {.layers = 1, .cpu_layers = 1, .kv_heads = 1, .depth = 64, .block_tokens = block_tokens};
}

// A cache whose tokens are written as a kernel would do it: each with a number of its own.
struct Written {
  test::Device device;
  KvCache cache;
  std::map<KvCache::Id, std::vector<unsigned char>> requests;
  unsigned char next = 0;
  explicit Written(std::size_t block_tokens) : cache(device.context, shape(block_tokens), /*careful=*/true) {}

  std::size_t block_tokens() const { return cache.shape().block_tokens; }
  std::byte* place(KvCache::Id id, std::size_t at, std::size_t value) const {
    const std::size_t row = value * block_tokens() + at % block_tokens();
    return cache.block(id, at / block_tokens()) + row * (kTokenBytes / 2);
  }
  float* on_processor(KvCache::Id id, std::size_t at) const {
    return cache.processor_block(id, at / block_tokens()) + at % block_tokens() * 64;
  }
  void write(KvCache::Id id, std::size_t tokens) {
    cache.reserve(id, requests[id].size() + tokens);
    for (std::size_t i = 0; i < tokens; ++i) {
      const std::size_t at = requests[id].size();
      requests[id].push_back(++next);
      for (const std::size_t value : {0, 1})
        CUDA_CHECK(cudaMemsetAsync(place(id, at, value), next + int(value), kTokenBytes / 2, device.context.stream()));
      *on_processor(id, at) = next;
    }
    cache.advance(id, tokens);
  }
  void fork(KvCache::Id id, std::size_t tokens) {
    const KvCache::Id child = cache.fork(id, tokens);
    requests[child].assign(requests[id].begin(), requests[id].begin() + static_cast<std::ptrdiff_t>(tokens));
  }
  void close(KvCache::Id id) {
    cache.close(id);
    requests.erase(id);
  }
  void expect_everything_is_there() {
    for (const auto& [id, tokens] : requests) {
      ASSERT_EQ(cache.tokens(id), tokens.size());
      for (std::size_t at = 0; at < tokens.size(); ++at) {
        for (const std::size_t value : {0, 1}) {
          const auto bytes =
              device.download(reinterpret_cast<const unsigned char*>(place(id, at, value)), kTokenBytes / 2);
          ASSERT_EQ(bytes, std::vector<unsigned char>(kTokenBytes / 2, static_cast<unsigned char>(tokens[at] + value)));
        }
        ASSERT_EQ(*on_processor(id, at), float(tokens[at]));
      }
    }
  }
};

TEST(KvCache, KeepsWhatEveryRequestHasWritten) {
  for (const std::size_t block_tokens : {1, 4, 16}) {
    Written w(block_tokens);
    std::mt19937 random(static_cast<unsigned>(block_tokens));
    std::size_t most = 0;
    for (int i = 0; i < 20 * OOMLAB_ROUNDS; ++i) {
      const std::size_t which = w.requests.empty() ? 0 : random() % w.requests.size();
      const auto at = std::next(w.requests.begin(), static_cast<std::ptrdiff_t>(which));
      const unsigned what = random() % 8;
      if (w.requests.empty() || what == 0) {
        w.requests[w.cache.open()];
      } else if (what < 5) {
        w.write(at->first, 1 + random() % 7);
      } else if (what == 5) {
        w.fork(at->first, random() % (at->second.size() + 1));
      } else if (what == 6 || w.requests.size() > 8) {
        w.close(at->first);
      } else if (random() % 4 == 0) {
        w.cache.trim();
        EXPECT_EQ(w.cache.free_blocks(), 0u);
      }
      most = std::max(most, w.cache.used_blocks());
      w.expect_everything_is_there();
      EXPECT_EQ(w.device.ledger.live_by_category()[Category::activations],
                (w.cache.used_blocks() + w.cache.free_blocks()) * block_tokens * kTokenBytes);
    }
    EXPECT_GT(most, 4u);
    while (!w.requests.empty()) w.close(w.requests.begin()->first);
    EXPECT_EQ(w.cache.used_blocks(), 0u);
  }
}

TEST(KvCache, SharesUntilSomebodyWrites) {
  Written w(4);
  const KvCache::Id first = w.cache.open();
  w.write(first, 6);
  EXPECT_EQ(w.cache.used_blocks(), 2u);
  EXPECT_EQ(w.cache.used_places(), 6u);
  w.fork(first, 5);
  w.fork(first, 4);
  w.fork(first, 0);
  const KvCache::Id five = first + 1, four = first + 2, none = first + 3;
  EXPECT_EQ(w.cache.used_blocks(), 2u);
  EXPECT_EQ(w.cache.used_places(), 6u);
  EXPECT_EQ(w.cache.block(five, 1), w.cache.block(first, 1));
  EXPECT_EQ(w.cache.blocks_of(four), 1u);
  EXPECT_EQ(w.cache.blocks_of(none), 0u);
  w.write(four, 1);  // begins a block of its own
  EXPECT_EQ(w.cache.used_blocks(), 3u);
  w.write(five, 1);  // goes on in a shared one
  EXPECT_EQ(w.cache.used_blocks(), 4u);
  EXPECT_NE(w.cache.block(five, 1), w.cache.block(first, 1));
  EXPECT_EQ(w.cache.block(five, 0), w.cache.block(first, 0));
  w.write(first, 2);  // nobody else has its second block any more
  EXPECT_EQ(w.cache.used_blocks(), 4u);
  EXPECT_EQ(w.cache.used_places(), 4u + 4 + 2 + 1);
  w.expect_everything_is_there();
  w.close(first);
  EXPECT_EQ(w.cache.used_blocks(), 3u);
  EXPECT_EQ(w.cache.free_blocks(), 1u);
  w.expect_everything_is_there();
  const std::byte* const freed = w.cache.block(five, 1);
  w.close(five);
  w.write(none, 1);
  EXPECT_EQ(w.cache.block(none, 0), freed) << "a freed block is handed out again";
  EXPECT_EQ(w.cache.used_blocks(), 3u);
}

TEST(KvCache, ARefusedReservationChangesNothing) {
  CudaResource resource;
  const CacheShape blocks = shape(4);
  LimitingResource limit(resource, kGranule + 3 * blocks.counted_block_bytes());
  Ledger ledger;
  Context context(limit, ledger, kGranule);
  KvCache cache(context, blocks, /*careful=*/true);
  const KvCache::Id a = cache.open();
  cache.reserve(a, 6);
  cache.advance(a, 6);
  const KvCache::Id b = cache.fork(a, 5);
  for (int again = 0; again < 2; ++again) {
    EXPECT_THROW(cache.reserve(b, 9), OutOfMemory);  // a copy and one more
    EXPECT_EQ(cache.block(b, 1), cache.block(a, 1));
    EXPECT_EQ(cache.blocks_of(b), 2u);
    EXPECT_EQ(cache.used_blocks(), 2u);
    EXPECT_EQ(cache.free_blocks(), 0u);
    EXPECT_EQ(ledger.live_bytes(), kGranule + 2 * blocks.counted_block_bytes());
  }
  cache.reserve(b, 8);
  EXPECT_EQ(cache.used_blocks(), 3u);
  cache.close(a);
  cache.reserve(b, 12);
  EXPECT_EQ(ledger.live_bytes(), kGranule + 3 * blocks.counted_block_bytes());
}

TEST(KvCache, RefusesWhatCannotBe) {
  Written w(4);
  const KvCache::Id id = w.cache.open();
  w.write(id, 3);
  EXPECT_THROW(w.cache.advance(id, 2), std::logic_error);
  EXPECT_THROW(w.cache.fork(id, 4), std::logic_error);
  w.close(id);
  EXPECT_THROW(w.cache.close(id), std::logic_error);
}

}  // namespace
