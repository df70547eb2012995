// The host memory behind device, pinned and managed memory, and addresses with nothing behind them.

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

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
    const std::lock_guard lock(mutex_);
    for (std::size_t i = pieces_; i-- > 0;)
      if (piece_[i].bytes == bytes) return remove(i);
    return nullptr;
  }
  void put(void* address, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
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
  std::mutex mutex_;
  Piece piece_[most_pieces] = {};
  std::size_t pieces_ = 0, bytes_ = 0;
};
constinit Kept kept;

}  // namespace

void* storage_allocate(std::size_t bytes) {
  void* address = nullptr;
  if (blocks_have_storage) {
    if (posix_memalign(&address, granule, bytes)) address = nullptr;  // exact: one element too far is an error
  } else if (is_mapped(bytes)) {
    address = kept.take(mapped_size(bytes));
    if (!address) address = lazy_allocate(mapped_size(bytes));
    if (address) (void)madvise(address, mapped_size(bytes), MADV_HUGEPAGE);
  } else {
    address = std::aligned_alloc(granule, round_up(bytes, granule));
  }
  if (!address) throw std::bad_alloc();
  poison(address, bytes);
  return address;
}

#ifdef OOMLAB_HOST_CHECK
namespace {
// ThreadSanitizer remembers every write, in four times the memory. Of a block it sees only the ends: who uses the block
// too early touches those, too.
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
    fill_unseen(static_cast<std::uint64_t*>(address), bytes / sizeof(std::uint64_t));
    std::memset(first, 0xff, seen);
    std::memset(first + bytes - seen, 0xff, seen);
    return;
  }
#endif
  std::memset(address, 0xff, bytes);
}

void storage_free(void* storage, std::size_t bytes) noexcept {
  if (is_mapped(bytes))
    kept.put(storage, mapped_size(bytes));
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

}  // namespace oomlab::host
