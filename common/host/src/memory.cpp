// Device and pinned memory, and stream-ordered pools.
//
// A pool's books are kept in offsets, not in addresses: chunks get offsets in the order they are reserved, so best fit
// decides the same way wherever the chunks really are, in plan mode too, and reserved bytes agree.

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace oomlab::host {
namespace {

using Pool = CUmemPoolHandle_st;
constexpr std::size_t usual_chunk = std::size_t(32) << 20, chunk_granule = std::size_t(2) << 20;
constexpr std::size_t most_bytes = std::size_t(1) << 60;

#ifdef OOMLAB_HOST_ASAN
constexpr bool blocks_have_storage = true;  // so that AddressSanitizer knows where each one ends
#else
constexpr bool blocks_have_storage = false;
#endif
#if defined(OOMLAB_HOST_ASAN) || defined(OOMLAB_HOST_CHECK)
constexpr bool poisoned = true;  // fresh memory reads as NaN
#else
constexpr bool poisoned = false;
#endif
constexpr std::size_t mapped_from = std::size_t(1) << 20;  // storage of this size comes from mmap

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

// --------------------------------------------------------------------------------------------------------------- pools

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
    if (size > pool.most - std::min(pool.most, pool.reserved) || !charge(pool.device, size)) continue;
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

// Removes a block and gives its memory back, after what `stream` has queued so far (nullptr: after nothing).
void release(Lock& lock, std::map<std::uintptr_t, Block>::iterator found, CUstream_st* stream) {
  const Block block = found->second;
  void* const address = reinterpret_cast<void*>(found->first);
  remove_block(found);
  if (block.kind == Kind::managed && !runtime().planning) {
    managed_free(address);
  } else if (block.kind == Kind::pool) {
    Pool* const pool = block.pool;
    give_back(*pool, block.offset, stream && deferred() ? Tickets{{stream->id, stream->submitted}} : Tickets{});
    delete_if_over(lock, pool);
    if (block.storage && stream)
      execute(lock, *stream, [=] { storage_free(block.storage, block.size); });
    else if (block.storage)
      storage_free(block.storage, block.size);
  } else {
    if (block.kind == Kind::device) refund(block.device, block.charged);
    if (block.storage && runtime().planning)
      lazy_free(block.storage, block.size);
    else if (block.storage)
      storage_free(block.storage, block.size);
  }
}

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

void* storage_allocate(std::size_t bytes) {
  void* address = nullptr;
  if (blocks_have_storage) {
    if (posix_memalign(&address, granule, bytes)) address = nullptr;  // exact: one element too far is an error
  } else if (bytes >= mapped_from) {
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) address = nullptr;
    if (address) (void)madvise(address, bytes, MADV_HUGEPAGE);
  } else {
    address = std::aligned_alloc(granule, round_up(bytes, granule));
  }
  if (!address) throw std::bad_alloc();
  poison(address, bytes);
  return address;
}

#ifdef OOMLAB_HOST_CHECK
namespace {
// ThreadSanitizer remembers every write, in four times the memory. Of a large block it sees only the ends: who uses the
// block too early touches those, too.
constexpr std::size_t seen = std::size_t(64) << 10;

__attribute__((no_sanitize("thread"), optimize("no-tree-loop-distribute-patterns"))) void fill_unseen(
    std::uint64_t* words, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) words[i] = ~std::uint64_t(0);
}
}  // namespace
#endif

void poison(void* address, std::size_t bytes) noexcept {
  if (!poisoned) return;
#ifdef OOMLAB_HOST_CHECK
  if (bytes > 4 * seen) {
    unsigned char* const first = static_cast<unsigned char*>(address);
    std::memset(first, 0xff, seen);
    const std::size_t middle = (bytes - 2 * seen) / sizeof(std::uint64_t) * sizeof(std::uint64_t);
    fill_unseen(reinterpret_cast<std::uint64_t*>(first + seen), middle / sizeof(std::uint64_t));
    std::memset(first + seen + middle, 0xff, bytes - seen - middle);
    return;
  }
#endif
  std::memset(address, 0xff, bytes);
}

void storage_free(void* storage, std::size_t bytes) noexcept {
  if (!blocks_have_storage && bytes >= mapped_from)
    (void)munmap(storage, bytes);
  else
    std::free(storage);
}

void* lazy_allocate(std::size_t bytes) noexcept {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}
void lazy_free(void* address, std::size_t bytes) noexcept { (void)munmap(address, bytes); }

std::uintptr_t plan_address(std::size_t bytes) {
  std::uintptr_t& next = runtime().next_address;
  const std::uintptr_t address = next;
  next += round_up(bytes, granule) + granule;  // no two blocks touch
  return address;
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
    r.devices[d].default_pool = r.devices[d].current_pool = pool.release();
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

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return entry("cudaPointerGetAttributes", cudaErrorUnknown, [&] {
    if (!attributes) return cudaErrorInvalidValue;
    const Lock lock = lock_runtime();
    const Block* block = find_block(address);
    void* const p = const_cast<void*>(address);
    const Kind kind = block ? block->kind : Kind::device;
    if (!block)
      *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, nullptr};
    else if (kind == Kind::pinned || kind == Kind::managed)
      *attributes = {kind == Kind::pinned ? cudaMemoryTypeHost : cudaMemoryTypeManaged, block->device, p, p};
    else
      *attributes = {cudaMemoryTypeDevice, block->device, p, nullptr};
    return cudaSuccess;
  });
}

cudaError_t cudaMallocAsync(void** result, size_t size, cudaStream_t handle) {
  return entry("cudaMallocAsync", cudaErrorMemoryAllocation, [&] {
    if (!result) return cudaErrorInvalidValue;
    Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    return pool_allocate(lock, result, size, *runtime().devices[std::size_t(stream->device)].current_pool, *stream);
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
        props->location.type != cudaMemLocationTypeDevice || props->usage)
      return cudaErrorInvalidValue;
    const Lock lock = lock_runtime();
    if (!valid_device(props->location.id)) return cudaErrorInvalidDevice;
    auto pool = std::make_unique<Pool>();
    pool->device = props->location.id;
    if (props->maxSize) pool->most = props->maxSize;
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
    if (pool == device.current_pool) device.current_pool = device.default_pool;
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

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* list, size_t count) {
  return entry("cudaMemPoolSetAccess", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    const Pool* const pool = find_pool(handle);
    if (!pool || (!list && count)) return cudaErrorInvalidValue;
    for (std::size_t i = 0; i < count; ++i) {
      if (list[i].location.type != cudaMemLocationTypeDevice) return cudaErrorInvalidValue;
      if (!valid_device(list[i].location.id)) return cudaErrorInvalidDevice;
      if (list[i].location.id == pool->device && list[i].flags != cudaMemAccessFlagsProtReadWrite)
        return cudaErrorInvalidDevice;  // a device keeps access to its own memory
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
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* result, int device) {
  return entry("cudaDeviceGetMemPool", cudaErrorUnknown, [&] {
    if (!result) return cudaErrorInvalidValue;
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    const Lock lock = lock_runtime();
    *result = runtime().devices[std::size_t(device)].current_pool;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t handle) {
  return entry("cudaDeviceSetMemPool", cudaErrorUnknown, [&] {
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    const Lock lock = lock_runtime();
    Pool* const pool = find_pool(handle);
    if (!pool || pool->device != device) return cudaErrorInvalidValue;
    runtime().devices[std::size_t(device)].current_pool = pool;
    return cudaSuccess;
  });
}
