// The caching allocators of chapter 06 and the plan: what they promise, on any device.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "../../chapters/06_caching_allocator/best_fit.h"
#include "../../chapters/06_caching_allocator/caching_allocator.h"
#include "../../chapters/06_caching_allocator/planned.h"
#include "../device.h"
#include "cuda/launch.h"

namespace oomlab::caching_allocator {
namespace {

constexpr std::size_t kMiB = std::size_t(1) << 20;

class Allocators : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_DEVICE();
    stream.emplace();
    other.emplace();
  }
  std::optional<Stream> stream, other;
};

struct Live {
  void* address;
  std::size_t bytes;
};

TEST_F(Allocators, BlocksAreAlignedAndDoNotOverlapAndTileTheRange) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    CachingAllocator memory({.limit = 256 * kMiB});
    std::mt19937_64 random(seed);
    std::vector<Live> live;
    std::map<std::uintptr_t, std::size_t> taken;
    std::size_t refused = 0, live_bytes = 0;
    for (int i = 0; i < 6000; ++i) {
      const cudaStream_t s = random() % 4 ? *stream : *other;
      if (!live.empty() && random() % 5 < 2) {
        const std::size_t k = random() % live.size();
        memory.deallocate(live[k].address, live[k].bytes, s);
        live_bytes -= round_to_granule(live[k].bytes);
        taken.erase(reinterpret_cast<std::uintptr_t>(live[k].address));
        live[k] = live.back();
        live.pop_back();
      } else {
        const std::size_t bytes = random() % 8 ? random() % (300 << 10) + 1 : random() % (40 * kMiB) + 1;
        try {
          void* const address = memory.allocate(bytes, s);
          const auto at = reinterpret_cast<std::uintptr_t>(address);
          ASSERT_EQ(at % 256, 0u);
          const auto next = taken.lower_bound(at);
          ASSERT_TRUE(next == taken.end() || next->first >= at + bytes);
          ASSERT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= at);
          taken[at] = bytes;
          live.push_back({address, bytes});
          live_bytes += round_to_granule(bytes);
        } catch (const OutOfMemory& error) {
          ++refused;
          EXPECT_TRUE(error.report().by_limit);
          EXPECT_EQ(error.report().live, live_bytes);
        }
      }
      ASSERT_LE(memory.reserved_bytes(), 256 * kMiB);
      ASSERT_EQ(memory.live_bytes(), live_bytes);
      if (i % 50 == 0) {
        ASSERT_EQ(memory.inconsistency(), "") << "after " << i << " operations, seed " << seed;
      }
    }
    EXPECT_GT(refused, 10u) << "the limit was never met";
    for (const Live& l : live) memory.deallocate(l.address, l.bytes, *stream);
    EXPECT_EQ(memory.inconsistency(), "");
    // Whatever came before: an empty allocator has its whole limit to give.
    void* const all = memory.allocate(256 * kMiB, *stream);
    EXPECT_THROW((void)memory.allocate(1, *stream), OutOfMemory);
    memory.deallocate(all, 256 * kMiB, *stream);
    EXPECT_EQ(memory.empty_cache(), 256 * kMiB);
    EXPECT_EQ(memory.reserved_bytes(), 0u);
    EXPECT_EQ(memory.inconsistency(), "");
  }
}

TEST_F(Allocators, ARefusedRequestChangesNothing) {
  CachingAllocator memory({.limit = 64 * kMiB});
  void* const a = memory.allocate(30 * kMiB, *stream);
  void* const b = memory.allocate(1 * kMiB, *stream);
  memory.deallocate(a, 30 * kMiB, *stream);
  const std::uint64_t before = memory.state_hash();
  for (const std::size_t bytes : {64 * kMiB, 65 * kMiB, std::size_t(1) << 41, std::size_t(1) << 62})
    EXPECT_THROW((void)memory.allocate(bytes, *stream), OutOfMemory);
  EXPECT_EQ(memory.state_hash(), before);
  EXPECT_EQ(memory.allocate(0, *stream), nullptr);
  memory.deallocate(nullptr, 0, *stream);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  memory.deallocate(b, kMiB, *stream);
}

// A known bad pattern: large blocks that grow a little each time, with long-lived small ones allocated in between.
TEST_F(Allocators, GrowingLargeAmongSmall) {
  CachingAllocator memory;
  std::vector<Live> small;
  std::vector<Live> large(4);
  std::size_t worst_reserved = 0, worst_live = 1;
  for (std::size_t cycle = 0; cycle < 10000; ++cycle) {
    Live& l = large[cycle % large.size()];
    if (l.address) memory.deallocate(l.address, l.bytes, *stream);
    l.bytes = 32 * kMiB + cycle * 3 * 512;
    l.address = memory.allocate(l.bytes, *stream);
    if (cycle % 10 == 0) small.push_back({memory.allocate(100 << 10, *stream), 100 << 10});
    const std::size_t live = memory.live_bytes(), reserved = memory.reserved_bytes();
    if (cycle > 100 && double(reserved) / double(live) > double(worst_reserved) / double(worst_live))
      worst_reserved = reserved, worst_live = live;
  }
  EXPECT_LE(double(worst_reserved), 1.1 * double(worst_live));
  EXPECT_EQ(memory.inconsistency(), "");
  for (const auto* list : {&small, &large})
    for (const Live& l : *list) memory.deallocate(l.address, l.bytes, *stream);
}

TEST_F(Allocators, TwoStreamsThatTakeTurnsNeedNoMoreThanOne) {
  const auto peak = [&](bool two) {
    CachingAllocator memory;
    for (int round = 0; round < 200; ++round) {
      const cudaStream_t s = two && round % 2 ? *other : *stream;
      std::vector<Live> live;
      for (const std::size_t bytes : {30 * kMiB, 7 * kMiB, 300 * (kMiB >> 10), 12 * kMiB})
        live.push_back({memory.allocate(bytes, s), bytes});
      for (const Live& l : live) memory.deallocate(l.address, l.bytes, s);
    }
    return memory.reserved_bytes();
  };
  EXPECT_LE(double(peak(true)), 1.1 * double(peak(false)));
}

TEST_F(Allocators, TheSmallerTheBudgetTheFewerSucceed) {
  // One sequence, under every budget from more than enough down to nothing.
  const auto survives = [&](std::size_t budget) {
    CachingAllocator memory({.limit = budget});
    std::mt19937_64 random(5);
    std::vector<Live> live;
    bool ok = true;
    for (int i = 0; i < 300 && ok; ++i) {
      if (live.size() > 12) {
        const std::size_t k = random() % live.size();
        memory.deallocate(live[k].address, live[k].bytes, *stream);
        live.erase(live.begin() + std::ptrdiff_t(k));
        continue;
      }
      const std::size_t bytes = random() % (6 * kMiB) + 1;
      try {
        live.push_back({memory.allocate(bytes, *stream), bytes});
      } catch (const OutOfMemory&) {
        ok = false;
      }
    }
    for (const Live& l : live) memory.deallocate(l.address, l.bytes, *stream);
    return ok;
  };
  bool succeeded = true;
  std::size_t changes = 0;
  for (std::size_t budget = 100 * kMiB; budget > 0; budget -= 2 * kMiB) {
    const bool now = survives(budget);
    if (now != succeeded) {
      ++changes;
      EXPECT_FALSE(now) << "succeeds with " << budget << " but not with more";
    }
    succeeded = now;
  }
  EXPECT_EQ(changes, 1u);
}

TEST_F(Allocators, CallbacksAreAskedBeforeGivingUp) {
  CachingAllocator memory({.limit = 32 * kMiB});
  void* cached = memory.allocate(20 * kMiB, *stream);
  std::size_t asked = 0;
  memory.on_out_of_memory([&](std::size_t bytes) {
    asked = bytes;
    if (!cached) return false;
    memory.deallocate(std::exchange(cached, nullptr), 20 * kMiB, *stream);
    return true;
  });
  void* const block = memory.allocate(24 * kMiB, *stream);
  EXPECT_EQ(asked, 24 * kMiB);
  EXPECT_THROW((void)memory.allocate(24 * kMiB, *stream), OutOfMemory);
  memory.deallocate(block, 24 * kMiB, *stream);
}

__global__ void write_index(unsigned* y, std::size_t n) {
  for (std::size_t i : grid_range(n)) y[i] = static_cast<unsigned>(i);
}

TEST_F(Allocators, MovedPagesAreUsableMemory) {
  CachingAllocator memory({.limit = 64 * kMiB});
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(memory.allocate(4 * kMiB, *stream));
  for (int i = 0; i < 16; i += 2) memory.deallocate(blocks[i], 4 * kMiB, *stream);
  auto* const large = static_cast<unsigned*>(memory.allocate(30 * kMiB, *stream));  // eight pieces of 4 MiB
  EXPECT_EQ(memory.reserved_bytes(), 64 * kMiB);
  const std::size_t n = 30 * kMiB / sizeof(unsigned);
  launch(write_index, shape_for_items(n), *stream, large, n);
  std::vector<unsigned> values(n);
  CUDA_CHECK(cudaMemcpyAsync(values.data(), large, 30 * kMiB, cudaMemcpyDeviceToHost, *stream));
  stream->synchronize();
  for (std::size_t i = 0; i < n; i += 997) ASSERT_EQ(values[i], i);
  memory.deallocate(large, 30 * kMiB, *stream);
  for (int i = 1; i < 16; i += 2) memory.deallocate(blocks[i], 4 * kMiB, *stream);
}

TEST_F(Allocators, EmptyCacheKeepsThePagesOfLiveBlocks) {
  CachingAllocator memory;
  void* const large = memory.allocate(8 * kMiB - 512, *stream);
  void* const small = memory.allocate(512, *stream);
  memory.deallocate(large, 8 * kMiB - 512, *stream);
  EXPECT_EQ(memory.empty_cache(), 8 * kMiB);
  EXPECT_EQ(memory.reserved_bytes(), 2 * kMiB);
  EXPECT_EQ(memory.inconsistency(), "");
  memory.deallocate(small, 512, *stream);
}

TEST_F(Allocators, BestFitCutsGrowsTogetherAndGivesSegmentsBack) {
  BestFitAllocator memory(40 * kMiB);
  void* const a = memory.allocate(3 * kMiB, *stream);
  void* const b = memory.allocate(3 * kMiB, *stream);
  EXPECT_EQ(memory.reserved_bytes(), 20 * kMiB);
  EXPECT_EQ(static_cast<char*>(b), static_cast<char*>(a) + 3 * kMiB);
  EXPECT_EQ(memory.largest_free_block(), 14 * kMiB);
  memory.deallocate(a, 3 * kMiB, *stream);
  EXPECT_EQ(memory.allocate(2 * kMiB, *stream), a) << "the smallest block that fits";
  memory.deallocate(a, 2 * kMiB, *stream);
  memory.deallocate(b, 3 * kMiB, *stream);
  EXPECT_EQ(memory.largest_free_block(), 20 * kMiB);
  void* const all = memory.allocate(40 * kMiB, *stream);  // the segment goes back first
  EXPECT_THROW((void)memory.allocate(512, *stream), OutOfMemory);
  memory.deallocate(all, 40 * kMiB, *stream);
}

// Wherever the driver puts them: what lies between two segments is nobody's.
TEST_F(Allocators, BestFitNeverJoinsSegments) {
  BestFitAllocator memory;
  void* const a = memory.allocate(20 * kMiB, *stream);
  void* const b = memory.allocate(20 * kMiB, *stream);
  memory.deallocate(a, 20 * kMiB, *stream);
  memory.deallocate(b, 20 * kMiB, *stream);
  EXPECT_EQ(memory.largest_free_block(), 20 * kMiB);
  void* const c = memory.allocate(30 * kMiB, *stream);
  EXPECT_EQ(memory.reserved_bytes(), 70 * kMiB);
  memory.deallocate(c, 30 * kMiB, *stream);
}

// ------------------------------------------------------------------------------------------------------------- plans

TEST(Plans, TheFirstInRankThatFitsIsFound) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    const std::size_t n = 1 + random() % 70;
    std::vector<Lifetime> lifetimes;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t begin = random() % 30;
      lifetimes.push_back({begin, begin + 1 + random() % 20, 512});
    }
    std::vector<std::size_t> by_rank(n);
    std::iota(by_rank.begin(), by_rank.end(), std::size_t(0));
    std::shuffle(by_rank.begin(), by_rank.end(), random);
    Waiting waiting(lifetimes);
    waiting.all_wait(by_rank);
    std::vector<bool> there(n, true);
    for (int ask = 0; ask < 200; ++ask) {
      const std::size_t begin = random() % 30, end = begin + random() % 30;
      std::size_t expected = Waiting::kNobody;
      for (std::size_t r = 0; r < n && expected == Waiting::kNobody; ++r)
        if (const Lifetime& l = lifetimes[by_rank[r]]; there[r] && l.begin >= begin && l.end <= end) expected = r;
      ASSERT_EQ(waiting.first_within(begin, end), expected) << round;
      if (expected != Waiting::kNobody && random() % 2) waiting.leave(by_rank[expected]), there[expected] = false;
    }
  }
}

TEST(Plans, BuffersThatLiveTogetherDoNotOverlap) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lifetimes;
    for (std::size_t i = 0, n = 1 + random() % 40; i < n; ++i) {
      const std::size_t begin = random() % 50;
      lifetimes.push_back({begin, begin + 1 + random() % 20, 512 * (1 + random() % 100)});
    }
    const Placement plan = Planner(lifetimes).solve(20);
    std::size_t top = 0;
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      top = std::max(top, plan.offsets[i] + lifetimes[i].bytes);
      for (std::size_t j = 0; j < i; ++j)
        if (lifetimes[i].begin < lifetimes[j].end && lifetimes[j].begin < lifetimes[i].end) {
          ASSERT_TRUE(plan.offsets[i] + lifetimes[i].bytes <= plan.offsets[j] ||
                      plan.offsets[j] + lifetimes[j].bytes <= plan.offsets[i]);
        }
    }
    EXPECT_EQ(top, plan.peak);
    EXPECT_GE(plan.peak, live_peak(lifetimes));
  }
}

TEST_F(Allocators, APlanServesTheSameStepAndFallsBackForAnother) {
  CachingAllocator pages;
  PlannedResource memory(pages);
  const auto step = [&](std::size_t factor, bool free_late = false) {
    memory.begin_step();
    std::vector<Live> live;
    for (std::size_t i = 1; i <= 20; ++i) {
      live.push_back({memory.allocate(factor * i * kMiB / 4, *stream), factor * i * kMiB / 4});
      for (std::size_t a = 0; a + 1 < live.size(); ++a) {
        const char *x = static_cast<char*>(live[a].address), *y = static_cast<char*>(live.back().address);
        EXPECT_TRUE(x + live[a].bytes <= y || y + live.back().bytes <= x);
      }
      if (i % 3 == 0 && !free_late) {
        memory.deallocate(live[0].address, live[0].bytes, *stream);
        live.erase(live.begin());
      }
    }
    for (const Live& l : live) memory.deallocate(l.address, l.bytes, *stream);
    memory.end_step();
  };
  step(1);
  EXPECT_EQ(memory.planned(), 0u);
  EXPECT_GT(memory.arena_bytes(), 0u);
  step(1);
  EXPECT_EQ(memory.planned(), 20u);
  step(2);
  EXPECT_EQ(memory.deviations(), 1u);
  EXPECT_EQ(memory.planned(), 20u);
  step(1);
  EXPECT_EQ(memory.planned(), 40u);
  // A buffer that outlives its planned end is not overwritten: what would be placed on it is served elsewhere.
  memory.begin_step();
  void* const kept = memory.allocate(kMiB / 4, *stream);
  memory.end_step();
  step(1);
  EXPECT_EQ(memory.deviations(), 2u);
  memory.deallocate(kept, kMiB / 4, *stream);
  // Nor is one whose place is another's, later in the step.
  step(1, /*free_late=*/true);
  EXPECT_EQ(memory.deviations(), 3u);
}

}  // namespace
}  // namespace oomlab::caching_allocator
