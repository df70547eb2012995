#pragma once
// Three things about caching allocators that a table of training runs does not show.

#include "best_fit.h"
#include "caching_allocator.h"
#include "harness/chapter.h"

namespace oomlab::caching_allocator {

/// Free memory in pieces: blocks of 3 MiB fill `limit`, every other one is freed, and one block of a quarter of the
/// limit is asked for.
struct Pieces {
  std::size_t free = 0, largest = 0, asked = 0;  ///< bytes
  bool served = false;
};
inline Pieces in_pieces(MemoryResource& memory, std::size_t limit, cudaStream_t stream) {
  constexpr std::size_t kBlock = std::size_t(3) << 20;
  Ledger ledger;
  TrackingResource tracked(memory, ledger);
  const auto block = [&](std::size_t bytes) {
    return DeviceBuffer<std::byte>(tracked, stream, bytes, Category::workspace, "piece");
  };
  std::vector<DeviceBuffer<std::byte>> blocks(limit / kBlock);
  Pieces result;
  result.asked = round_to_granule(limit / 4);
  try {
    for (auto& b : blocks) b = block(kBlock);
  } catch (const OutOfMemory&) {  // rounding takes a few
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    result.free += blocks[i].bytes();
    blocks[i].reset();
  }
  result.largest = memory.largest_free_block();
  try {
    (void)block(result.asked);
    result.served = true;
  } catch (const OutOfMemory&) {
  }
  return result;
}

/// What empty_cache() gives back while one small tensor in 8 MiB is live.
struct Emptied {
  std::size_t reserved = 0, live = 0, given = 0;  ///< bytes
};
inline Emptied empty_cache_with_live_blocks(CachingAllocator& memory, cudaStream_t stream) {
  constexpr std::size_t kLarge = std::size_t(8) << 20, kCount = 4;
  Ledger ledger;
  TrackingResource tracked(memory, ledger);
  DeviceBuffer<std::byte> large[kCount], small[kCount];
  for (std::size_t i = 0; i < kCount; ++i) {
    large[i] = DeviceBuffer<std::byte>(tracked, stream, kLarge, Category::workspace, "large");
    small[i] = DeviceBuffer<std::byte>(tracked, stream, kGranule, Category::workspace, "small");
  }
  for (auto& buffer : large) buffer.reset();
  Emptied result{memory.reserved_bytes(), memory.live_bytes(), 0};
  result.given = memory.empty_cache();
  return result;
}

/// Peak of a chain of eight layers' outputs, each needed only by the next one: `x = layer(x)` keeps the old x until the
/// new one is assigned, and freeing the one before last late keeps three alive.
inline std::size_t chain_peak(MemoryResource& memory, cudaStream_t stream, bool early) {
  constexpr std::size_t kTensor = std::size_t(4) << 20;
  Ledger ledger;
  TrackingResource tracked(memory, ledger);
  DeviceBuffer<float> x(tracked, stream, kTensor / sizeof(float), Category::activations, "x"), before;
  for (int layer = 0; layer < 8; ++layer) {
    if (early) before.reset();  // what the last layer read is of no use any more
    DeviceBuffer<float> y(tracked, stream, kTensor / sizeof(float), Category::activations, "y");
    before = std::move(x);
    x = std::move(y);
  }
  return ledger.peak_bytes();
}

}  // namespace oomlab::caching_allocator
