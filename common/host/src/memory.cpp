// Device, pinned and managed memory: blocks, and the calls that make and free them. (Pools: pools.cpp.)

#include <algorithm>

#include "runtime.h"

namespace oomlab::host {
namespace {

// A block comes (+1) or goes (-1). Unsigned sums wrap around, so both are additions.
void count(const Block& block, int change) {
  Live& live = runtime().live;
  const auto times = static_cast<std::size_t>(change);
  if (block.kind == Kind::pinned) {
    live.pinned_bytes += times * block.size;
  } else {
    live.device_bytes += times * block.charged;
    live.device_blocks += times;
  }
}

}  // namespace

void add_block(void* address, const Block& block) {
  runtime().blocks.emplace(reinterpret_cast<std::uintptr_t>(address), block);
  count(block, +1);
}

Blocks::iterator block_at(const void* address, std::initializer_list<Kind> kinds) {
  const auto found = runtime().blocks.find(reinterpret_cast<std::uintptr_t>(address));
  require(found != runtime().blocks.end() && std::ranges::count(kinds, found->second.kind));
  return found;
}

void release(Lock& lock, Blocks::iterator found, CUstream_st* stream) {
  const Block block = found->second;
  void* const address = reinterpret_cast<void*>(found->first);
  runtime().blocks.erase(found);
  count(block, -1);
  if (block.kind == Kind::pool) return pool_release(lock, address, block, stream);
  if (block.kind == Kind::device) refund(block.device, block.charged);
  if (block.kind != Kind::device && runtime().planning)
    lazy_free(address, block.size);
  else if (block.kind == Kind::managed)
    managed_free(address);
  else
    storage_free(address, block.size);
}

Block* find_block(const void* address, std::uintptr_t* base) {
  auto& blocks = runtime().blocks;
  const auto p = reinterpret_cast<std::uintptr_t>(address);
  auto found = blocks.upper_bound(p);
  if (found == blocks.begin()) return nullptr;
  --found;
  if (p - found->first >= found->second.size) return nullptr;
  if (base) *base = found->first;
  return &found->second;
}

bool in_bounds(const void* address, std::size_t bytes) {
  std::uintptr_t base = 0;
  const Block* block = find_block(address, &base);
  if (!block) return true;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(address) + bytes;
  std::uintptr_t reached = base + block->size;
  while (block && block->kind == Kind::mapped && block->accessible && reached < end) {  // mappings may adjoin
    block = find_block(reinterpret_cast<const void*>(reached), &base);
    if (block) reached = base + block->size;
  }
  return block && block->accessible && end <= reached;
}

namespace {

// Pinned and managed memory: host code may touch it. In plan mode it is address space with nothing behind it.
void* host_visible_allocate(std::size_t size, Kind kind) {
  // Refused here, because an allocator under a sanitizer ends the program instead of saying no.
  constexpr std::size_t most_host_bytes = std::size_t(1) << 40;
  require(size <= (runtime().planning ? most_bytes : most_host_bytes), cudaErrorMemoryAllocation);
  void* address;
  if (runtime().planning) {
    address = lazy_allocate(size);
    if (!address) address = reinterpret_cast<void*>(plan_address(size));
  } else {
    address = kind == Kind::managed ? managed_allocate(size) : storage_allocate(size);
  }
  add_block(address, {size, round_up(size, granule), kind, current_device()});
  return address;
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaMalloc(void** result, size_t size) {
  return entry("cudaMalloc", cudaErrorMemoryAllocation, [&](Lock& lock) {
    require(result);
    *result = nullptr;
    if (size == 0) return;
    require(size <= most_bytes, cudaErrorMemoryAllocation);
    const Block block{size, round_up(size, granule), Kind::device, current_device()};
    charge_or_trim(lock, block.device, block.charged);
    try {
      *result = storage_allocate(size);
    } catch (const std::bad_alloc&) {
      refund(block.device, block.charged);
      throw;
    }
    add_block(*result, block);
  });
}

cudaError_t cudaFree(void* address) {
  return release_entry("cudaFree", [&](Lock& lock) {
    if (!address) return;
    const auto freeable = [&] { return block_at(address, {Kind::device, Kind::pool, Kind::managed}); };
    drain_device(lock, freeable()->second.device);
    release(lock, freeable(), nullptr);  // looked for once more: the mutex was open in between
  });
}

cudaError_t cudaMallocHost(void** result, size_t size) {
  return entry("cudaMallocHost", cudaErrorMemoryAllocation, [&](Lock&) {
    require(result);
    *result = nullptr;
    if (size) *result = host_visible_allocate(size, Kind::pinned);
  });
}

cudaError_t cudaMallocManaged(void** result, size_t size, unsigned int flags) {
  return entry("cudaMallocManaged", cudaErrorMemoryAllocation, [&](Lock&) {
    require(result && size && flags == cudaMemAttachGlobal);
    *result = host_visible_allocate(size, Kind::managed);
  });
}

cudaError_t cudaFreeHost(void* address) {
  return release_entry("cudaFreeHost", [&](Lock& lock) {
    if (!address) return;
    drain_device(lock, -1);
    release(lock, block_at(address, {Kind::pinned}), nullptr);
  });
}
