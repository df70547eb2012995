// Device, pinned and managed memory: blocks, and the calls that make and free them. (Pools: pools.cpp.)

#include "runtime.h"

namespace oomlab::host {

void add_block(void* address, const Block& block) {
  Live& live = runtime().live;
  runtime().blocks.emplace(reinterpret_cast<std::uintptr_t>(address), block);
  if (block.kind == Kind::pinned) {
    live.pinned_bytes += block.size;
  } else {
    live.device_bytes += block.charged;
    ++live.device_blocks;
  }
}
namespace {

void remove_block(std::map<std::uintptr_t, Block>::iterator found) {
  Live& live = runtime().live;
  if (found->second.kind == Kind::pinned) {
    live.pinned_bytes -= found->second.size;
  } else {
    live.device_bytes -= found->second.charged;
    --live.device_blocks;
  }
  runtime().blocks.erase(found);
}

}  // namespace

void release(Lock& lock, std::map<std::uintptr_t, Block>::iterator found, CUstream_st* stream) {
  const Block block = found->second;
  void* const address = reinterpret_cast<void*>(found->first);
  remove_block(found);
  if (block.kind == Kind::managed && !runtime().planning) {
    managed_free(address);
  } else if (block.kind == Kind::pool) {
    pool_release(lock, block, stream);
  } else {
    if (block.kind == Kind::device) refund(block.device, block.charged);
    if (block.storage && runtime().planning)
      lazy_free(block.storage, block.size);
    else if (block.storage)
      storage_free(block.storage, block.size);
  }
}

namespace {

// Pinned and managed memory: host code may touch it. In plan mode it is address space with nothing behind it.
cudaError_t host_visible_allocate(void** result, std::size_t size, Kind kind) {
  if (size > most_bytes) return cudaErrorMemoryAllocation;
  const Lock lock = lock_runtime();
  Block block{size, round_up(size, granule), kind, current_device(), nullptr, 0, nullptr};
  void* address;
  if (runtime().planning) {
    block.storage = address = lazy_allocate(size);
    if (!address) address = reinterpret_cast<void*>(plan_address(size));
  } else {
    // Refused here, because an allocator under a sanitizer ends the program instead of saying no.
    constexpr std::size_t most_host_bytes = std::size_t(1) << 40;
    if (size > most_host_bytes) return cudaErrorMemoryAllocation;
    block.storage = address = kind == Kind::managed ? managed_allocate(size) : storage_allocate(size);
  }
  add_block(address, block);
  *result = address;
  return cudaSuccess;
}
cudaError_t pinned_allocate(void** result, std::size_t size) {
  if (!result) return cudaErrorInvalidValue;
  *result = nullptr;
  return size ? host_visible_allocate(result, size, Kind::pinned) : cudaSuccess;
}

}  // namespace

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

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaMalloc(void** result, size_t size) {
  return entry("cudaMalloc", cudaErrorMemoryAllocation, [&] {
    if (!result) return cudaErrorInvalidValue;
    *result = nullptr;
    if (size == 0) return cudaSuccess;
    if (size > most_bytes) return cudaErrorMemoryAllocation;
    Lock lock = lock_runtime();
    const int device = current_device();
    Block block{size, round_up(size, granule), Kind::device, device, nullptr, 0, nullptr};
    if (!charge(device, block.charged)) {  // what the pools hold and do not use is given back first
      drain_device(lock, device);
      trim_pools(device, true);
      if (!charge(device, block.charged)) return cudaErrorMemoryAllocation;
    }
    void* address;
    if (runtime().planning) {
      address = reinterpret_cast<void*>(plan_address(size));
    } else {
      try {
        block.storage = address = storage_allocate(size);
      } catch (const std::bad_alloc&) {
        refund(device, block.charged);
        throw;
      }
    }
    add_block(address, block);
    *result = address;
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* address) {
  return release_entry("cudaFree", [&] {
    if (!address) return cudaSuccess;
    Lock lock = lock_runtime();
    const auto freeable = [&] {
      const auto found = runtime().blocks.find(reinterpret_cast<std::uintptr_t>(address));
      if (found == runtime().blocks.end()) return found;
      const bool ours = found->second.kind != Kind::pinned && found->second.kind != Kind::mapped;
      return ours ? found : runtime().blocks.end();
    };
    if (freeable() == runtime().blocks.end()) return cudaErrorInvalidValue;
    drain_device(lock, freeable()->second.device);
    const auto found = freeable();  // once more: the mutex was open in between
    if (found == runtime().blocks.end()) return cudaErrorInvalidValue;
    release(lock, found, nullptr);
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** result, size_t size, unsigned int flags) {
  return entry("cudaHostAlloc", cudaErrorMemoryAllocation, [&] {
    if (flags & ~unsigned(cudaHostAllocPortable)) return cudaErrorInvalidValue;
    return pinned_allocate(result, size);
  });
}
cudaError_t cudaMallocHost(void** result, size_t size) {
  return entry("cudaMallocHost", cudaErrorMemoryAllocation, [&] { return pinned_allocate(result, size); });
}

cudaError_t cudaMallocManaged(void** result, size_t size, unsigned int flags) {
  return entry("cudaMallocManaged", cudaErrorMemoryAllocation, [&] {
    if (!result || size == 0 || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost))
      return cudaErrorInvalidValue;
    return host_visible_allocate(result, size, Kind::managed);
  });
}

cudaError_t cudaFreeHost(void* address) {
  return release_entry("cudaFreeHost", [&] {
    if (!address) return cudaSuccess;
    Lock lock = lock_runtime();
    drain_device(lock, -1);
    const auto found = runtime().blocks.find(reinterpret_cast<std::uintptr_t>(address));
    if (found == runtime().blocks.end() || found->second.kind != Kind::pinned) return cudaErrorInvalidValue;
    release(lock, found, nullptr);
    return cudaSuccess;
  });
}
