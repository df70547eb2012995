// Makes operator new a fault point of the program it is linked into, beside the calls of the host runtime, and counts
// what is live. A file of its own: inlined into its callers, the pairing of new with free would look like a mistake to
// the compiler.

#include "operator_new.h"

#include <malloc.h>
#include <oomlab_host.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long long> live_bytes{0}, peak_bytes{0};

void* allocate_or_null(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) noexcept {
  if (!oomlab::host::inside_runtime() && oomlab::host::fault_point("operator new")) return nullptr;
  const std::size_t padded = (bytes + alignment) / alignment * alignment;  // at least 1, as aligned_alloc wants it
  void* p = alignment > alignof(std::max_align_t) ? std::aligned_alloc(alignment, padded) : std::malloc(padded);
  if (!p) return p;
  const long long live = live_bytes += static_cast<long long>(malloc_usable_size(p));
  for (long long peak = peak_bytes; peak < live && !peak_bytes.compare_exchange_weak(peak, live);) {
  }
  return p;
}

void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  if (void* p = allocate_or_null(bytes, alignment)) return p;
  throw std::bad_alloc();
}

void give_back(void* p) noexcept {
  if (p) live_bytes -= static_cast<long long>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

long long oomlab::test::host_heap_bytes() noexcept { return live_bytes; }
long long oomlab::test::take_host_heap_peak() noexcept { return peak_bytes.exchange(live_bytes); }

void* operator new(std::size_t n) { return allocate(n); }
void* operator new[](std::size_t n) { return allocate(n); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate(n, static_cast<std::size_t>(a)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate_or_null(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate_or_null(n); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate_or_null(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate_or_null(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { give_back(p); }
void operator delete[](void* p) noexcept { give_back(p); }
void operator delete(void* p, std::size_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { give_back(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { give_back(p); }
