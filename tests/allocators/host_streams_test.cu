// No block is used again before the work that used it is done: on the host runtime's deferred streams, which run queued
// work as late as CUDA allows, and in an order that a seed chooses.

#include <gtest/gtest.h>
#include <oomlab_host.h>

#include <random>

#include "../../chapters/06_caching_allocator/caching_allocator.h"
#include "cuda/launch.h"

namespace oomlab::caching_allocator {
namespace {

__global__ void write_tag(unsigned* y, std::size_t n, unsigned tag) {
  for (std::size_t i : grid_range(n)) y[i] = tag;
}
__global__ void count_others(const unsigned* y, std::size_t n, unsigned tag, unsigned* others) {
  for (std::size_t i : grid_range(n))
    if (y[i] != tag) atomicAdd(others, 1u);
}

// Values that were not there any more, over one seeded schedule. `honest`: the allocator is told the right stream.
unsigned lost_values(unsigned seed, bool honest) {
  host::Machine machine;
  machine.capacity = std::size_t(64) << 20;
  machine.deferred = true;
  machine.seed = seed;
  host::configure(machine);
  unsigned found = 0;
  {
    std::vector<Stream> streams(3);
    CachingAllocator memory({.limit = std::size_t(8) << 20});
    unsigned* others = nullptr;
    CUDA_CHECK(cudaMalloc(&others, sizeof(unsigned)));
    CUDA_CHECK(cudaMemset(others, 0, sizeof(unsigned)));
    CUDA_CHECK(cudaDeviceSynchronize());
    std::mt19937 random(seed);
    struct Block {
      unsigned* data;
      std::size_t count, stream;
      unsigned tag;
    };
    std::vector<Block> live;
    for (unsigned i = 1; i <= 40; ++i) {
      if (live.size() > 4 || (!live.empty() && random() % 2)) {
        const std::size_t k = random() % live.size();
        const Block b = live[k];
        live.erase(live.begin() + std::ptrdiff_t(k));
        launch(count_others, {1, 32, 0}, streams[b.stream], b.data, b.count, b.tag, others);
        memory.deallocate(b.data, b.count * sizeof(unsigned), streams[honest ? b.stream : (b.stream + 1) % 3]);
      } else {
        const std::size_t stream = random() % 3, count = (1 + random() % 300) * 1024;
        try {
          auto* const data = static_cast<unsigned*>(memory.allocate(count * sizeof(unsigned), streams[stream]));
          launch(write_tag, {1, 32, 0}, streams[stream], data, count, i);
          live.push_back({data, count, stream, i});
        } catch (const OutOfMemory&) {
        }
      }
    }
    for (const Block& b : live) {
      launch(count_others, {1, 32, 0}, streams[b.stream], b.data, b.count, b.tag, others);
      memory.deallocate(b.data, b.count * sizeof(unsigned), streams[b.stream]);
    }
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(&found, others, sizeof found, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(others));
  }
  EXPECT_EQ(host::describe(host::live()), "nothing");
  return found;
}

class Deferred : public testing::Test {
 protected:
  void SetUp() override { before_ = host::machine(); }
  void TearDown() override { host::configure(before_); }
  host::Machine before_;
};

TEST_F(Deferred, NoBlockIsUsedAgainTooEarly) {
  for (unsigned seed = 1; seed <= OOMLAB_SCHEDULES; ++seed) ASSERT_EQ(lost_values(seed, true), 0u) << "seed " << seed;
}
TEST_F(Deferred, AWrongStreamIsFound) {
  unsigned schedules = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) schedules += lost_values(seed, false) > 0;
  EXPECT_GT(schedules, 0u) << "the test cannot fail";
}

}  // namespace
}  // namespace oomlab::caching_allocator
