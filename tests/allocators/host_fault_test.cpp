// Every fallible call of a replay through the caching allocator is made to fail: growth, borrowing, moving pages,
// giving the cache back. (tests/faults/operator_new.cpp is linked in, so host allocations fail too.)

#include <gtest/gtest.h>
#include <oomlab_host.h>

#include <random>

#include "../../chapters/06_caching_allocator/best_fit.h"
#include "../../chapters/06_caching_allocator/caching_allocator.h"

namespace oomlab::caching_allocator {
namespace {

constexpr std::size_t kMiB = std::size_t(1) << 20;

struct Count {
  std::size_t refused = 0, thrown = 0, lost_bytes = 0;
};

// The same requests each time, on two streams, under a limit that makes pages move. An operation that throws because of
// the fault is tried again after checking that nothing has changed.
Count replay(std::vector<std::size_t>* refused_at) {
  Count count;
  Stream one, two;
  CachingAllocator memory({.limit = 24 * kMiB});
  std::mt19937_64 random(7);
  struct Live {
    void* address;
    std::size_t bytes;
    std::size_t stream;
  };
  std::vector<Live> live;
  live.reserve(100);
  for (std::size_t i = 0; i < 400; ++i) {
    if (i % 90 == 80) {
      const std::size_t bytes = memory.live_bytes();
      try {
        (void)memory.empty_cache();
      } catch (const std::exception&) {
        ++count.thrown;
      }
      EXPECT_EQ(memory.live_bytes(), bytes);
      EXPECT_EQ(memory.inconsistency(), "");
    }
    const std::size_t stream = random() % 2, k = random(),
                      size = random() % 5 ? random() % kMiB : random() % (8 * kMiB);
    const cudaStream_t s = stream ? two : one;
    if (live.size() > 9 || (!live.empty() && k % 2)) {
      Live& l = live[k / 2 % live.size()];
      memory.deallocate(l.address, l.bytes, s);
      l = live.back();
      live.pop_back();
    } else {
      for (int attempt = 0; attempt < 2; ++attempt) {
        const std::uint64_t before = memory.state_hash();
        const std::size_t reserved = memory.reserved_bytes(), bytes = memory.live_bytes();
        try {
          live.push_back({memory.allocate(size + 1, s), size + 1, stream});
          break;
        } catch (const OutOfMemory& error) {
          if (refused_at && attempt == 0) refused_at->push_back(i);
          ++count.refused;
        } catch (const CudaError&) {
          ++count.thrown;
        } catch (const std::bad_alloc&) {
          ++count.thrown;
        }
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
        EXPECT_EQ(memory.live_bytes(), bytes);
        EXPECT_EQ(memory.inconsistency(), "");
        // Free memory of another stream may have changed hands, and free pages may have gone back to the device.
        if (memory.reserved_bytes() == reserved && host::fault_calls() == 0) {
          EXPECT_EQ(memory.state_hash(), before);
        }
        EXPECT_LE(memory.reserved_bytes(), reserved);
      }
    }
    EXPECT_EQ(memory.inconsistency(), "") << "operation " << i;
  }
  for (const Live& l : live) memory.deallocate(l.address, l.bytes, l.stream ? two : one);
  count.lost_bytes = memory.lost_bytes();
  return count;
}

TEST(AllocatorFaults, EveryCallOfAReplay) {
  (void)cudaFree(nullptr);
  std::vector<std::size_t> clean_refusals;
  host::arm_fault(0, false);
  (void)replay(nullptr);
  const std::uint64_t calls = host::fault_calls();
  host::disarm_fault();
  (void)replay(&clean_refusals);
  ASSERT_EQ(host::describe(host::live()), "nothing");
  ASSERT_GT(calls, 100u);
  std::set<std::string> sites;
  std::size_t thrown = 0, lost = 0;
  testing::internal::CaptureStderr();  // what is given back with an error says so, each time
  for (const bool from_then_on : {false, true})
    for (std::uint64_t k = 1; k <= calls; ++k) {
      host::arm_fault(k, from_then_on);
      try {
        const Count count = replay(nullptr);
        thrown += count.thrown;
        lost += count.lost_bytes;
      } catch (const CudaError&) {  // no allocator at all, or no stream
        ++thrown;
      } catch (const std::bad_alloc&) {
        ++thrown;
      } catch (const std::exception& error) {
        host::disarm_fault();
        ADD_FAILURE() << "call " << k << ": " << error.what();
      }
      host::disarm_fault();
      sites.insert(host::fault_site());
      (void)cudaGetLastError();
      ASSERT_EQ(host::describe(host::live()), "nothing")
          << "call " << k << (from_then_on ? " and all later ones" : "") << ": " << host::fault_site();
      if (k % 16 == 0) {  // and the same requests have the same fate as ever
        std::vector<std::size_t> refusals;
        (void)replay(&refusals);
        ASSERT_EQ(refusals, clean_refusals);
      }
    }
  (void)testing::internal::GetCapturedStderr();
  for (const char* site : {"cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemRelease",
                           "cuMemAddressReserve", "cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamSynchronize"})
    EXPECT_EQ(sites.count(site), 1u) << site << " was never made to fail";
  EXPECT_GT(thrown, 0u);
  EXPECT_GT(lost, 0u) << "no page was ever quarantined";
}

// A page that could not be unmapped is never handed out again.
TEST(AllocatorFaults, APageWhoseUnmappingFailedIsQuarantined) {
  Stream stream;
  bool seen = false;
  testing::internal::CaptureStderr();
  for (std::uint64_t k = 1; k < 400 && !seen; ++k) {
    CachingAllocator memory({.limit = 32 * kMiB});
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(memory.allocate(4 * kMiB, stream));
    for (int i = 0; i < 8; i += 2) memory.deallocate(blocks[i], 4 * kMiB, stream);
    host::arm_fault(k, false);
    void* large = nullptr;
    try {
      large = memory.allocate(8 * kMiB, stream);
    } catch (const std::exception&) {
    }
    host::disarm_fault();
    seen = std::string(host::fault_site()) == "cuMemUnmap";
    (void)cudaGetLastError();
    if (seen) {
      EXPECT_EQ(memory.lost_bytes(), 2 * kMiB);
      EXPECT_EQ(memory.inconsistency(), "");
      // All that is left can be had, in pieces of a page, and the lost page is not among them.
      memory.deallocate(large, 8 * kMiB, stream);
      std::vector<void*> pieces;
      try {
        for (;;) pieces.push_back(memory.allocate(2 * kMiB, stream));
      } catch (const OutOfMemory&) {
      }
      EXPECT_EQ(pieces.size(), (32 - 16) / 2 - 1u);
      EXPECT_EQ(memory.inconsistency(), "");
      for (void* const piece : pieces) memory.deallocate(piece, 2 * kMiB, stream);
    } else {
      memory.deallocate(large, 8 * kMiB, stream);
    }
    for (int i = 1; i < 8; i += 2) memory.deallocate(blocks[i], 4 * kMiB, stream);
  }
  (void)testing::internal::GetCapturedStderr();
  EXPECT_TRUE(seen);
  EXPECT_EQ(host::live().device_bytes, 0u);
}

}  // namespace
}  // namespace oomlab::caching_allocator
