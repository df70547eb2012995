// The host memory behind device, pinned and managed memory, and addresses with nothing behind them.

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime.h"

namespace oomlab::host {

constexpr std::size_t mapped_from = std::size_t(1) << 20;  // storage of this size comes from mmap

void* storage_allocate(std::size_t bytes) {
  if (runtime().planning) return reinterpret_cast<void*>(plan_address(bytes));
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
  if (runtime().planning) return;
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

}  // namespace oomlab::host
