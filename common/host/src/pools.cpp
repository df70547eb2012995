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
  if (chunk->second.base) storage_free(chunk->second.base, chunk->second.size);
  pool.chunks.erase(chunk);
}

// Releases unused chunks, newest first, as long as at least `keep` bytes stay reserved. Chunks that queued work may
// still use stay.
void trim(Pool& pool, std::size_t keep) {
  if (pool.reserved <= keep || pool.reserved == pool.used) return;
  for (auto next = pool.chunks.end(); next != pool.chunks.begin();) {
    const auto chunk = std::prev(next);
    const Pool::Range& range = pool.ranges.at(chunk->first);
    const bool unused = range.free && range.size == chunk->second.size && all_done(range.after);
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
    try {
      if (!blocks_have_storage || runtime().planning) base = static_cast<char*>(storage_allocate(size));
    } catch (const std::bad_alloc&) {
      refund(pool.device, size);
      return false;
    }
    const std::uint64_t offset = pool.next_offset;
    pool.next_offset += size;
    pool.chunks[offset] = {size, base};
    pool.ranges[offset] = {size, true, {}};
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
    if (t.stream != stream.id && !all_done({t})) after.push_back(t);
  if (size > bytes) {
    pool.ranges[offset + bytes] = {size - bytes, true, range.after};
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

// Two neighbours that are free, in one chunk, become one.
void join(Pool& pool, std::map<std::uint64_t, Pool::Range>::iterator low) {
  const auto high = std::next(low);
  if (high == pool.ranges.end() || !low->second.free || !high->second.free || pool.chunks.contains(high->first)) return;
  for (const auto& range : {low, high}) pool.free.erase({range->second.size, range->first});
  low->second.size += high->second.size;
  low->second.after.insert(low->second.after.end(), high->second.after.begin(), high->second.after.end());
  pool.free.insert({low->second.size, low->first});
  pool.ranges.erase(high);
}

void give_back(Pool& pool, std::uint64_t offset, const Tickets& after) {
  const auto range = pool.ranges.find(offset);
  pool.used -= range->second.size;
  range->second.free = true;
  range->second.after = after;
  pool.free.insert({range->second.size, offset});
  join(pool, range);
  if (range != pool.ranges.begin()) join(pool, std::prev(range));
}

void delete_if_over(Pool* pool) {
  if (pool->used || runtime().pools.contains(pool)) return;
  drain_device(-1);
  while (!pool->chunks.empty()) release_chunk(*pool, pool->chunks.begin());
  delete pool;
}

Pool& find_pool(cudaMemPool_t handle) {
  require(runtime().pools.contains(handle));
  return *handle;
}

void* pool_allocate(std::size_t size, Pool& pool, CUstream_st& stream) {
  if (size == 0) return nullptr;
  require(size <= most_bytes, cudaErrorMemoryAllocation);
  const std::size_t bytes = round_up(size, granule);
  make_fit(pool.device, [&] { return pool.free.lower_bound({bytes, 0}) != pool.free.end() || grow(pool, bytes); });
  // Before the books change, because it may throw.
  void* address = blocks_have_storage && !runtime().planning ? storage_allocate(size) : nullptr;
  const Block block{size, Kind::pool, pool.device, &pool, take(pool, bytes, stream)};
  const auto& [start, chunk] = *std::prev(pool.chunks.upper_bound(block.offset));
  if (!address) address = chunk.base + (block.offset - start);
  add_block(address, block);
  if (poisoned && !runtime().planning) execute(stream, [=] { poison(address, size); });
  return address;
}

}  // namespace

void pool_release(void* address, const Block& block, CUstream_st* stream) {
  give_back(*block.pool, block.offset, stream && deferred() ? Tickets{{stream->id, stream->submitted}} : Tickets{});
  delete_if_over(block.pool);
  if (!blocks_have_storage || runtime().planning) return;
  const auto free = [=] { storage_free(address, block.size); };
  stream ? execute(*stream, free) : free();
}

void trim_pools(int device, bool everything) {
  for (const cudaMemPool_t pool : runtime().pools)
    if (pool->device == device) trim(*pool, everything ? 0 : pool->threshold);
}

cudaMemPool_t new_pool(Runtime& r, int device) { return *r.pools.insert(new Pool{.device = device}).first; }

void destroy_default_pools() {
  for (const Device& device : runtime().devices) {
    runtime().pools.erase(device.default_pool);
    delete_if_over(device.default_pool);
  }
}

bool open_to(const void* address, int device) {
  const Block* const block = find_block(address);
  return !block || !block->pool || block->device == device || (block->pool->peers >> device & 1);
}

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaMallocAsync(void** result, size_t size, cudaStream_t handle) {
  return result_entry<cudaErrorMemoryAllocation>("cudaMallocAsync", result, [&] {
    CUstream_st& stream = find_stream(handle);
    return pool_allocate(size, *device_of(stream.device).default_pool, stream);
  });
}
cudaError_t cudaMallocFromPoolAsync(void** result, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
  return result_entry<cudaErrorMemoryAllocation>(
      "cudaMallocFromPoolAsync", result, [&] { return pool_allocate(size, find_pool(pool), find_stream(stream)); });
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  return entry<cudaErrorUnknown, gives_back>("cudaFreeAsync", [&] {
    CUstream_st& stream = find_stream(handle);
    release(block_at(address, {Kind::pool}), &stream);
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* result, const cudaMemPoolProps* props) {
  return result_entry<cudaErrorMemoryAllocation>("cudaMemPoolCreate", result, [&] {
    require(props && props->allocType == cudaMemAllocationTypePinned && !props->handleTypes &&
            props->location.type == cudaMemLocationTypeDevice);
    require_device(props->location.id);
    return new_pool(runtime(), props->location.id);
  });
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return entry<cudaErrorUnknown, gives_back>("cudaMemPoolDestroy", [&] {
    Pool& pool = find_pool(handle);
    require(&pool != device_of(pool.device).default_pool);
    runtime().pools.erase(&pool);
    delete_if_over(&pool);  // with blocks outstanding: when the last one is freed
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t keep) {
  return entry("cudaMemPoolTrimTo", [&] { trim(find_pool(handle), keep); });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attr, void* value) {
  return entry("cudaMemPoolSetAttribute", [&] {
    Pool& pool = find_pool(handle);
    require(value);
    const std::uint64_t number = *static_cast<const std::uint64_t*>(value);
    if (attr == cudaMemPoolAttrReleaseThreshold) {
      pool.threshold = number;
    } else {  // a record starts anew
      require(number == 0 && (attr == cudaMemPoolAttrReservedMemHigh || attr == cudaMemPoolAttrUsedMemHigh));
      attr == cudaMemPoolAttrUsedMemHigh ? pool.used_high = pool.used : pool.reserved_high = pool.reserved;
    }
  });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attr, void* value) {
  return result_entry("cudaMemPoolGetAttribute", static_cast<std::uint64_t*>(value), [&] {
    const Pool& pool = find_pool(handle);
    switch (attr) {
      case cudaMemPoolAttrReleaseThreshold: return pool.threshold;
      case cudaMemPoolAttrReservedMemCurrent: return pool.reserved;
      case cudaMemPoolAttrReservedMemHigh: return pool.reserved_high;
      case cudaMemPoolAttrUsedMemCurrent: return pool.used;
      case cudaMemPoolAttrUsedMemHigh: return pool.used_high;
    }
    throw Refusal{cudaErrorInvalidValue};
  });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* list, size_t count) {
  return entry("cudaMemPoolSetAccess", [&] {
    Pool& pool = find_pool(handle);
    require(list || !count);
    std::uint64_t peers = pool.peers;
    for (std::size_t i = 0; i < count; ++i) {
      require(list[i].location.type == cudaMemLocationTypeDevice && list[i].flags == cudaMemAccessFlagsProtReadWrite);
      require_device(list[i].location.id);
      peers |= std::uint64_t(1) << list[i].location.id;
    }
    pool.peers = peers;
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* result, int device) {
  return result_entry("cudaDeviceGetDefaultMemPool", result, [&] {
    require_device(device);
    return device_of(device).default_pool;
  });
}
