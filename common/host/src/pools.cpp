// Stream-ordered pools.
//
// A pool's books are kept in offsets, not in addresses: chunks get offsets in the order they are reserved, so best fit
// decides the same way wherever the chunks really are, in plan mode too, and reserved bytes agree.

#include <algorithm>

#include "runtime.h"

namespace oomlab::host {
namespace {

using Pool = CUmemPoolHandle_st;
constexpr std::size_t usual_chunk = std::size_t(32) << 20, chunk_granule = std::size_t(2) << 20;

void release_chunk(Pool& pool, std::map<std::uint64_t, Pool::Chunk>::iterator chunk) {
  pool.free.erase({chunk->second.size, chunk->first});
  pool.ranges.erase(chunk->first);
  refund(pool.device, chunk->second.size);
  pool.reserved -= chunk->second.size;
  if (!runtime().planning && chunk->second.base) storage_free(chunk->second.base, chunk->second.size);
  pool.chunks.erase(chunk);
}

// Releases unused chunks, newest first, as long as at least `keep` bytes stay reserved. Chunks that queued work may
// still use stay.
void trim(Pool& pool, std::size_t keep) {
  if (pool.reserved <= keep || pool.reserved == pool.used) return;
  for (auto next = pool.chunks.end(); next != pool.chunks.begin();) {
    const auto chunk = std::prev(next);
    const Pool::Range& range = pool.ranges.at(chunk->first);
    const bool unused = range.free && range.size == chunk->second.size &&
                        std::all_of(range.after.begin(), range.after.end(), [](const Ticket& t) { return is_done(t); });
    if (unused && pool.reserved - chunk->second.size >= keep)
      release_chunk(pool, chunk);  // `next` stays valid
    else
      next = chunk;
  }
}

// Reserves a chunk for a block of `bytes`: the usual size, or just enough when that is not there.
bool grow(Pool& pool, std::size_t bytes) {
  const std::size_t enough = round_up(bytes, chunk_granule);
  for (const std::size_t size : {std::max(enough, usual_chunk), enough}) {
    if (!charge(pool.device, size)) continue;
    char* base = nullptr;
    if (runtime().planning) {
      base = reinterpret_cast<char*>(plan_address(size));
    } else if (!blocks_have_storage) {
      try {
        base = static_cast<char*>(storage_allocate(size));
      } catch (const std::bad_alloc&) {
        refund(pool.device, size);
        return false;
      }
    }
    const std::uint64_t offset = pool.next_offset;
    pool.next_offset += size;
    pool.chunks[offset] = {size, base};
    pool.ranges[offset] = {size, true, offset, {}};
    pool.free.insert({size, offset});
    pool.reserved += size;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return true;
  }
  return false;
}

// Takes `bytes` out of the best-fitting free range; the rest of it stays free.
std::uint64_t take(Pool& pool, std::size_t bytes, CUstream_st& stream) {
  const auto [size, offset] = *pool.free.lower_bound({bytes, 0});
  pool.free.erase({size, offset});
  Pool::Range& range = pool.ranges.at(offset);
  Tickets after;
  for (const Ticket& t : range.after)
    if (t.stream != stream.id && !is_done(t)) after.push_back(t);
  if (size > bytes) {
    pool.ranges[offset + bytes] = {size - bytes, true, range.chunk, range.after};
    pool.free.insert({size - bytes, offset + bytes});
  }
  range.size = bytes;
  range.free = false;
  range.after.clear();
  pool.used += bytes;
  pool.used_high = std::max(pool.used_high, pool.used);
  if (!after.empty()) submit(stream, {}, after);  // as CUDA's "reuse allow internal dependencies"
  return offset;
}

void give_back(Pool& pool, std::uint64_t offset, const Tickets& after) {
  auto range = pool.ranges.find(offset);
  pool.used -= range->second.size;
  range->second.free = true;
  range->second.after = after;
  using Place = std::map<std::uint64_t, Pool::Range>::iterator;
  const auto merge = [&](Place low, Place high) {
    low->second.size += high->second.size;
    low->second.after.insert(low->second.after.end(), high->second.after.begin(), high->second.after.end());
    pool.ranges.erase(high);
  };
  const auto joins = [&](Place other) { return other->second.free && other->second.chunk == range->second.chunk; };
  if (const auto next = std::next(range); next != pool.ranges.end() && joins(next)) {
    pool.free.erase({next->second.size, next->first});
    merge(range, next);
  }
  if (range != pool.ranges.begin() && joins(std::prev(range))) {
    const auto low = std::prev(range);
    pool.free.erase({low->second.size, low->first});
    merge(low, range);
    range = low;
  }
  pool.free.insert({range->second.size, range->first});
}

void delete_if_over(Lock& lock, Pool* pool) {
  if (!pool->destroyed || pool->used) return;
  drain_device(lock, -1);
  while (!pool->chunks.empty()) release_chunk(*pool, pool->chunks.begin());
  delete pool;
}

Pool* find_pool(cudaMemPool_t handle) { return runtime().live_pools.contains(handle) ? handle : nullptr; }

cudaError_t pool_allocate(Lock& lock, void** result, std::size_t size, Pool& pool, CUstream_st& stream) {
  if (size == 0) {
    *result = nullptr;
    return cudaSuccess;
  }
  if (size > most_bytes) return cudaErrorMemoryAllocation;
  const std::size_t bytes = round_up(size, granule);
  const auto fits = [&] { return pool.free.lower_bound({bytes, 0}) != pool.free.end(); };
  if (!fits() && !grow(pool, bytes)) {
    drain_device(lock, pool.device);
    trim_pools(pool.device, true);
    if (!fits() && !grow(pool, bytes)) return cudaErrorMemoryAllocation;
  }
  Block block{size, bytes, Kind::pool, pool.device, &pool, take(pool, bytes, stream), nullptr};
  const auto chunk = pool.chunks.at(pool.ranges.at(block.offset).chunk);
  char* address = chunk.base + (block.offset - pool.ranges.at(block.offset).chunk);
  if (!chunk.base) {
    try {
      block.storage = storage_allocate(size);
    } catch (const std::bad_alloc&) {
      give_back(pool, block.offset, {});
      return cudaErrorMemoryAllocation;
    }
    address = static_cast<char*>(block.storage);
  }
  add_block(address, block);
  *result = address;
  if (poisoned && !runtime().planning) execute(lock, stream, [=] { poison(address, size); });
  return cudaSuccess;
}

}  // namespace

void pool_release(Lock& lock, const Block& block, CUstream_st* stream) {
  give_back(*block.pool, block.offset, stream && deferred() ? Tickets{{stream->id, stream->submitted}} : Tickets{});
  delete_if_over(lock, block.pool);
  if (block.storage && stream)
    execute(lock, *stream, [=] { storage_free(block.storage, block.size); });
  else if (block.storage)
    storage_free(block.storage, block.size);
}

void trim_pools(int device, bool everything) {
  for (const void* handle : runtime().live_pools) {
    Pool& pool = *static_cast<Pool*>(const_cast<void*>(handle));
    if (device < 0 || pool.device == device) trim(pool, everything ? 0 : pool.threshold);
  }
}

void make_default_pools(Runtime& r) {
  for (std::size_t d = 0; d < r.devices.size(); ++d) {
    auto pool = std::make_unique<Pool>();
    pool->device = static_cast<int>(d);
    r.live_pools.insert(pool.get());
    r.devices[d].default_pool = pool.release();
  }
}

void destroy_default_pools() {
  Runtime& r = runtime();
  for (Device& device : r.devices) {
    Pool* const pool = device.default_pool;
    while (!pool->chunks.empty()) release_chunk(*pool, pool->chunks.begin());
    r.live_pools.erase(pool);
    delete pool;
  }
}

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaMallocAsync(void** result, size_t size, cudaStream_t handle) {
  return entry("cudaMallocAsync", cudaErrorMemoryAllocation, [&] {
    if (!result) return cudaErrorInvalidValue;
    Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    return pool_allocate(lock, result, size, *runtime().devices[std::size_t(stream->device)].default_pool, *stream);
  });
}
cudaError_t cudaMallocFromPoolAsync(void** result, size_t size, cudaMemPool_t handle, cudaStream_t stream_handle) {
  return entry("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation, [&] {
    if (!result) return cudaErrorInvalidValue;
    Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(stream_handle);
    Pool* const pool = find_pool(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!pool) return cudaErrorInvalidValue;
    return pool_allocate(lock, result, size, *pool, *stream);
  });
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  return release_entry("cudaFreeAsync", [&] {
    Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    const auto found = runtime().blocks.find(reinterpret_cast<std::uintptr_t>(address));
    if (found == runtime().blocks.end() || found->second.kind != Kind::pool) return cudaErrorInvalidValue;
    release(lock, found, stream);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* result, const cudaMemPoolProps* props) {
  return entry("cudaMemPoolCreate", cudaErrorMemoryAllocation, [&] {
    if (!result || !props || props->allocType != cudaMemAllocationTypePinned || props->handleTypes ||
        props->location.type != cudaMemLocationTypeDevice || props->usage || props->maxSize)
      return cudaErrorInvalidValue;
    const Lock lock = lock_runtime();
    if (!valid_device(props->location.id)) return cudaErrorInvalidDevice;
    auto pool = std::make_unique<Pool>();
    pool->device = props->location.id;
    runtime().live_pools.insert(pool.get());
    ++runtime().live.pools;
    *result = pool.release();
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return release_entry("cudaMemPoolDestroy", [&] {
    Lock lock = lock_runtime();
    Pool* const pool = find_pool(handle);
    if (!pool) return cudaErrorInvalidValue;
    Device& device = runtime().devices[std::size_t(pool->device)];
    if (pool == device.default_pool) return cudaErrorInvalidValue;
    runtime().live_pools.erase(pool);
    --runtime().live.pools;
    pool->destroyed = true;
    delete_if_over(lock, pool);  // with blocks outstanding: when the last one is freed
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t keep) {
  return entry("cudaMemPoolTrimTo", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    Pool* const pool = find_pool(handle);
    if (!pool) return cudaErrorInvalidValue;
    trim(*pool, keep);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attr, void* value) {
  return entry("cudaMemPoolSetAttribute", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    Pool* const pool = find_pool(handle);
    if (!pool || !value) return cudaErrorInvalidValue;
    const auto number = [&] { return *static_cast<const std::uint64_t*>(value); };
    switch (attr) {
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies:
        pool->reuse[attr - 1] = *static_cast<const int*>(value) != 0;  // accepted; reuse works as described above
        return cudaSuccess;
      case cudaMemPoolAttrReleaseThreshold: pool->threshold = number(); return cudaSuccess;
      case cudaMemPoolAttrReservedMemHigh:
        if (number() != 0) return cudaErrorInvalidValue;
        pool->reserved_high = pool->reserved;
        return cudaSuccess;
      case cudaMemPoolAttrUsedMemHigh:
        if (number() != 0) return cudaErrorInvalidValue;
        pool->used_high = pool->used;
        return cudaSuccess;
      default: return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attr, void* value) {
  return entry("cudaMemPoolGetAttribute", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    const Pool* const pool = find_pool(handle);
    if (!pool || !value) return cudaErrorInvalidValue;
    std::uint64_t& number = *static_cast<std::uint64_t*>(value);
    switch (attr) {
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies:
        *static_cast<int*>(value) = static_cast<int>(pool->reuse[attr - 1]);
        return cudaSuccess;
      case cudaMemPoolAttrReleaseThreshold: number = pool->threshold; return cudaSuccess;
      case cudaMemPoolAttrReservedMemCurrent: number = pool->reserved; return cudaSuccess;
      case cudaMemPoolAttrReservedMemHigh: number = pool->reserved_high; return cudaSuccess;
      case cudaMemPoolAttrUsedMemCurrent: number = pool->used; return cudaSuccess;
      case cudaMemPoolAttrUsedMemHigh: number = pool->used_high; return cudaSuccess;
    }
    return cudaErrorInvalidValue;
  });
}

bool oomlab::host::open_to(const void* address, int device) {
  const Block* const block = find_block(address);
  return !block || !block->pool || block->device == device || (block->pool->peers >> device & 1);
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* list, size_t count) {
  return entry("cudaMemPoolSetAccess", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    Pool* const pool = find_pool(handle);
    if (!pool || (!list && count)) return cudaErrorInvalidValue;
    for (std::size_t i = 0; i < count; ++i) {
      if (list[i].location.type != cudaMemLocationTypeDevice) return cudaErrorInvalidValue;
      if (!valid_device(list[i].location.id)) return cudaErrorInvalidDevice;
      if (list[i].location.id == pool->device && list[i].flags != cudaMemAccessFlagsProtReadWrite)
        return cudaErrorInvalidDevice;  // a device keeps access to its own memory
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bit = std::uint64_t(1) << list[i].location.id;
      list[i].flags == cudaMemAccessFlagsProtReadWrite ? pool->peers |= bit : pool->peers &= ~bit;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* result, int device) {
  return entry("cudaDeviceGetDefaultMemPool", cudaErrorUnknown, [&] {
    if (!result) return cudaErrorInvalidValue;
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    *result = runtime().devices[std::size_t(device)].default_pool;
    return cudaSuccess;
  });
}
