#pragma once
// Three things about caching allocators that a table of training runs does not show.

#include "best_fit.h"
#include "caching_allocator.h"
#include "harness/chapter.h"

namespace oomlab::chapters {

/// Free memory in pieces: blocks of 3 MiB fill `limit`, every other one is freed, and one block of a quarter of the
/// limit is asked for.
struct Pieces {
  std::size_t free = 0, largest = 0, asked = 0;  ///< bytes
  bool served = false;
};
inline Pieces in_pieces(MemoryResource& memory, std::size_t limit, cudaStream_t stream) {
  constexpr std::size_t kBlock = std::size_t(3) << 20;
  std::vector<void*> blocks;
  Pieces result;
  result.asked = round_to_granule(limit / 4);
  try {
    for (std::size_t i = 0; i < limit / kBlock; ++i) blocks.push_back(memory.allocate(kBlock, stream));
  } catch (const OutOfMemory&) {  // rounding takes a few
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    memory.deallocate(blocks[i], kBlock, stream);
    result.free += kBlock;
    blocks[i] = nullptr;
  }
  result.largest = memory.largest_free_block();
  try {
    memory.deallocate(memory.allocate(result.asked, stream), result.asked, stream);
    result.served = true;
  } catch (const OutOfMemory&) {
  }
  for (void* const block : blocks) memory.deallocate(block, kBlock, stream);
  return result;
}

/// What empty_cache() gives back while one small tensor in 8 MiB is live.
struct Emptied {
  std::size_t reserved = 0, live = 0, given = 0;  ///< bytes
};
inline Emptied empty_cache_with_live_blocks(CachingAllocator& memory, cudaStream_t stream) {
  constexpr std::size_t kLarge = (std::size_t(8) << 20) - kGranule, kCount = 4;
  void *large[kCount] = {}, *small[kCount] = {};
  for (std::size_t i = 0; i < kCount; ++i) {
    large[i] = memory.allocate(kLarge, stream);
    small[i] = memory.allocate(kGranule, stream);
  }
  for (void* const block : large) memory.deallocate(block, kLarge, stream);
  Emptied result{memory.reserved_bytes(), memory.live_bytes(), memory.empty_cache()};
  for (void* const block : small) memory.deallocate(block, kGranule, stream);
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

}  // namespace oomlab::chapters
