// common/cuda/device/oomlab_block.h, which otherwise only a GPU runs: its threads are played (cuda_runtime.h, here).
// The header is rewritten in one place by the build: g++ cannot parse "extern __shared__".

#include "oomlab_block_played.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace oomlab {

alignas(16) unsigned char oomlab_shared[64];

namespace {

constexpr unsigned kThreads[] = {1, 31, 32, 33, 96, 256, 1000, 1024};

template <class T>
class DeviceBlock : public testing::Test {};
using Types = testing::Types<float, int>;
TYPED_TEST_SUITE(DeviceBlock, Types);

TYPED_TEST(DeviceBlock, SumsAndMaximaReachAllThreads) {
  for (const unsigned n : kThreads) {
    // Small integers: exact in any order. Called again right away, with other values.
    std::vector<TypeParam> first(n), second(n), most(n);
    const int mistakes = played::launch(1, n, [&] {
      const unsigned t = threadIdx.x;
      first[t] = block_sum(TypeParam(t * 7 % 11));
      second[t] = block_sum(TypeParam((t * 7 + 1) % 11));
      most[t] = block_max(TypeParam(-1000 + int((t + n / 2) % n)));
    });
    EXPECT_EQ(0, mistakes) << n;
    TypeParam sums[2] = {};
    for (unsigned t = 0; t < n; ++t) sums[0] += TypeParam(t * 7 % 11), sums[1] += TypeParam((t * 7 + 1) % 11);
    for (unsigned t = 0; t < n; ++t) {
      ASSERT_EQ(sums[0], first[t]) << n << " threads, thread " << t;
      ASSERT_EQ(sums[1], second[t]) << n << " threads, thread " << t;
      ASSERT_EQ(TypeParam(-1000 + int(n) - 1), most[t]) << n << " threads, thread " << t;
    }
  }
}

TEST(DeviceRanges, EachIndexIsVisitedOnce) {
  for (const unsigned n : {1u, 33u, 256u})
    for (const std::size_t items : {0, 1, 31, 257, 1000}) {
      constexpr unsigned blocks = 3;
      std::vector<std::atomic<int>> by_grid(items), by_rows(items), by_block(items);
      played::launch(blocks, n, [&] {
        for (const std::size_t i : grid_range(items)) ++by_grid[i];
        for (const std::size_t i : row_range(items)) ++by_rows[i];
        for (const std::size_t i : block_range(items)) ++by_block[i];
      });
      for (std::size_t i = 0; i < items; ++i) {
        ASSERT_EQ(1, by_grid[i]) << i;
        ASSERT_EQ(int(n), by_rows[i]) << "all threads of a block visit the same rows";
        ASSERT_EQ(int(blocks), by_block[i]) << i;
      }
    }
}

TEST(DeviceRanges, DynamicSharedMemoryIsAligned) {
  EXPECT_EQ(oomlab_shared, reinterpret_cast<unsigned char*>(dynamic_shared<double>()));
  EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(dynamic_shared<float>()) % 16);
}

TEST(DeviceRanges, Grids) {
  EXPECT_EQ(1u, blocks_for_items(0, 256));
  EXPECT_EQ(1u, blocks_for_items(256, 256));
  EXPECT_EQ(2u, blocks_for_items(257, 256));
  EXPECT_EQ(4096u, blocks_for_items(std::size_t(1) << 40, 256));
  EXPECT_EQ(1u, blocks_for_rows(0));
  EXPECT_EQ(65535u, blocks_for_rows(std::size_t(1) << 40));
}

}  // namespace
}  // namespace oomlab
