// Device, pinned and managed memory: what is behind it, the calls that make and free it, copies and fills. (Pools:
// pools.cpp; managed memory's pages: managed.cpp.) Plan mode checks the arguments, makes addresses, and touches
// nothing.

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace oomlab::host {
namespace {

constexpr std::size_t mapped_from = std::size_t(1) << 20;  // storage of this size comes from mmap
std::size_t mapped_size(std::size_t bytes) { return round_up(bytes, std::size_t(64) << 10); }
bool is_mapped(std::size_t bytes) { return !blocks_have_storage && bytes >= mapped_from; }

// Mapped storage that was freed, to be had again: a new page has to be cleared when it is first touched, and a step
// that allocates and frees would pay for that every time.
class Kept {
 public:
  void* take(std::size_t bytes) noexcept {
    for (std::size_t i = pieces_; i-- > 0;)
      if (piece_[i].bytes == bytes) return remove(i);
    return nullptr;
  }
  void put(void* address, std::size_t bytes) noexcept {
    if (bytes > most_bytes) return void(munmap(address, bytes));
    while (pieces_ == most_pieces || bytes_ + bytes > most_bytes) {
      const std::size_t oldest = piece_[0].bytes;
      (void)munmap(remove(0), oldest);
    }
    piece_[pieces_++] = {address, bytes};
    bytes_ += bytes;
  }

 private:
  static constexpr std::size_t most_bytes = std::size_t(256) << 20, most_pieces = 64;
  struct Piece {
    void* address;
    std::size_t bytes;
  };
  void* remove(std::size_t i) noexcept {
    void* const address = piece_[i].address;
    bytes_ -= piece_[i].bytes;
    std::copy(piece_ + i + 1, piece_ + pieces_--, piece_ + i);
    return address;
  }
  Piece piece_[most_pieces] = {};
  std::size_t pieces_ = 0, bytes_ = 0;
};
constinit Kept kept;

// ThreadSanitizer remembers every write, in four times the memory. Of a block it sees only the ends: who uses the block
// too early touches those, too.
constexpr std::size_t seen = std::size_t(128) << 10;

__attribute__((no_sanitize("thread"), optimize("no-tree-loop-distribute-patterns"))) void fill_unseen(
    std::uint64_t* words, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) words[i] = ~std::uint64_t(0);
}

// Pinned and managed memory: host code may touch it. In plan mode it is address space with nothing behind it.
void* host_visible_allocate(std::size_t size, Kind kind) {
  // Refused here, because an allocator under a sanitizer ends the program instead of saying no.
  constexpr std::size_t most_host_bytes = std::size_t(1) << 40;
  require(size <= (runtime().planning ? most_bytes : most_host_bytes), cudaErrorMemoryAllocation);
  need_context(current_device());
  void* address = nullptr;
  if (runtime().planning)
    address = lazy_allocate(size);
  else if (kind == Kind::managed)
    address = managed_allocate(size);
  if (!address) address = storage_allocate(size);
  add_block(address, {size, kind, current_device()});
  return address;
}

// Pinned and managed memory belong to both worlds.
bool host_reaches(const Block* block) { return !block || block->kind == Kind::pinned || block->kind == Kind::managed; }

// `wait`: the forms without Async.
void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t handle, bool wait) {
  CUstream_st& stream = find_stream(handle);
  require(kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault, cudaErrorInvalidMemcpyDirection);
  if (bytes == 0) return;
  require(to && from && in_bounds(to, bytes) && in_bounds(from, bytes));
  const Block *const target = find_block(to), *const source = find_block(from);  // nullptr: the host's own memory
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  require(kind == cudaMemcpyDefault || ((to_device ? target != nullptr : host_reaches(target)) &&
                                        (from_device ? source != nullptr : host_reaches(source))));
  runtime().work[stream.device].copied_bytes += bytes;
  if (runtime().planning) return;
  // CUDA stages pageable sources before it returns, and finishes copies to pageable memory. The forms without Async
  // finish what pinned or managed memory is part of; what they have staged may still be on its way to the device.
  const bool finish = !target || (wait && (host_reaches(target) || (source && host_reaches(source))));
  std::shared_ptr<char[]> staged;
  if (!source && !finish && deferred()) {
    staged = std::make_shared_for_overwrite<char[]>(bytes);
    from = std::memcpy(staged.get(), from, bytes);
  }
  execute(stream, [=, staged = std::move(staged)] { std::memmove(to, from, bytes); });
  if (wait && !deferred()) managed_host_view();
  if (finish && deferred()) drain({{stream.id, stream.submitted}});
}

void fill(void* address, int value, std::size_t bytes, cudaStream_t handle) {
  CUstream_st& stream = find_stream(handle);
  if (bytes == 0) return;
  require(address && find_block(address) && in_bounds(address, bytes));
  runtime().work[stream.device].filled_bytes += bytes;
  if (!runtime().planning) execute(stream, [=] { std::memset(address, value, bytes); });
}

}  // namespace

void* storage_allocate(std::size_t bytes) {
  if (runtime().planning) return reinterpret_cast<void*>(plan_address(bytes));
  void* address = nullptr;
  if (!is_mapped(bytes)) {  // not rounded up: AddressSanitizer sees one element too far
    if (posix_memalign(&address, granule, bytes)) address = nullptr;
  } else if (address = kept.take(mapped_size(bytes)); !address) {
    address = lazy_allocate(mapped_size(bytes));
    if (address) (void)madvise(address, mapped_size(bytes), MADV_HUGEPAGE);
  }
  if (!address) throw std::bad_alloc();
  poison(address, bytes);
  return address;
}

void poison(void* address, std::size_t bytes) noexcept {
  if (!poisoned) return;
  fill_unseen(static_cast<std::uint64_t*>(address), bytes / sizeof(std::uint64_t));
  unsigned char* const first = static_cast<unsigned char*>(address);
  const std::size_t end = std::min(bytes, seen);
  std::memset(first, 0xff, end);
  std::memset(first + bytes - end, 0xff, end);
}

void storage_free(void* storage, std::size_t bytes) noexcept {
  if (runtime().planning) return;
  if (is_mapped(bytes))
    kept.put(storage, mapped_size(bytes));
  else
    std::free(storage);
}

void* lazy_allocate(std::size_t bytes) noexcept {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

std::uintptr_t plan_address(std::size_t bytes) {
  std::uintptr_t& next = runtime().next_address;
  const std::uintptr_t address = next;
  next += round_up(bytes, granule) + granule;  // no two blocks touch
  return address;
}

void add_block(void* address, const Block& block) {
  runtime().blocks.emplace(reinterpret_cast<std::uintptr_t>(address), block);
}

Blocks::iterator block_at(const void* address, std::initializer_list<Kind> kinds) {
  const auto found = runtime().blocks.find(reinterpret_cast<std::uintptr_t>(address));
  require(found != runtime().blocks.end() && std::ranges::count(kinds, found->second.kind));
  return found;
}

void release(Blocks::iterator found, CUstream_st* stream) {
  const Block block = found->second;
  void* const address = reinterpret_cast<void*>(found->first);
  runtime().blocks.erase(found);
  if (block.kind == Kind::pool) return pool_release(address, block, stream);
  if (block.kind == Kind::device) refund(block.device, block.charged());
  if (block.kind != Kind::device && runtime().planning)
    munmap(address, block.size);
  else if (block.kind == Kind::managed)
    managed_free(address);
  else
    storage_free(address, block.size);
}

Block* find_block(const void* address, std::uintptr_t* base) {
  auto& blocks = runtime().blocks;
  const auto p = reinterpret_cast<std::uintptr_t>(address);
  const auto next = blocks.upper_bound(p);
  if (next == blocks.begin()) return nullptr;
  auto& [start, block] = *std::prev(next);
  if (p - start >= block.size) return nullptr;
  if (base) *base = start;
  return &block;
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
  return result_entry<cudaErrorMemoryAllocation>("cudaMalloc", result, [&]() -> void* {
    if (size == 0) return nullptr;
    require(size <= most_bytes, cudaErrorMemoryAllocation);
    const Block block{size, Kind::device, current_device()};
    make_fit(block.device, [&] { return charge(block.device, block.charged()); });
    try {
      void* const address = storage_allocate(size);
      add_block(address, block);
      return address;
    } catch (const std::bad_alloc&) {
      refund(block.device, block.charged());
      throw;
    }
  });
}
cudaError_t cudaMallocHost(void** result, size_t size) {
  return result_entry<cudaErrorMemoryAllocation>(
      "cudaMallocHost", result, [&] { return size ? host_visible_allocate(size, Kind::pinned) : nullptr; });
}
cudaError_t cudaMallocManaged(void** result, size_t size, unsigned int flags) {
  return result_entry<cudaErrorMemoryAllocation>("cudaMallocManaged", result, [&] {
    require(flags == cudaMemAttachGlobal);
    return size ? host_visible_allocate(size, Kind::managed) : nullptr;
  });
}

cudaError_t cudaFree(void* address) {
  return entry<cudaErrorUnknown, gives_back>("cudaFree", [&] {
    if (!address) return need_context(current_device());
    const auto freeable = [&] { return block_at(address, {Kind::device, Kind::pool, Kind::managed}); };
    drain_device(freeable()->second.device);
    release(freeable(), nullptr);  // looked for once more: the mutex was open in between
  });
}
cudaError_t cudaFreeHost(void* address) {
  return entry<cudaErrorUnknown, gives_back>("cudaFreeHost", [&] {
    if (!address) return;
    drain_device(-1);
    release(block_at(address, {Kind::pinned}), nullptr);
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return entry("cudaMemcpy", [&] { copy(to, from, bytes, kind, nullptr, true); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return entry("cudaMemcpyAsync", [&] { copy(to, from, bytes, kind, stream, false); });
}
cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  return entry("cudaMemset", [&] { fill(address, value, bytes, nullptr); });
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  return entry("cudaMemsetAsync", [&] { fill(address, value, bytes, stream); });
}
