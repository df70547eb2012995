// Counts what the reader's code takes of the host's memory in containers: an array that was moved there is not saved.

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "watch.h"

namespace {

std::atomic<long long> live{0}, peak{0};

void count(std::size_t bytes) {
  const long long now = live += static_cast<long long>(bytes);
  if (now > peak) peak = now;
}
void* allocate_or_null(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) noexcept {
  const std::size_t padded = (bytes + alignment) / alignment * alignment;
  void* const p = alignment > alignof(std::max_align_t) ? std::aligned_alloc(alignment, padded) : std::malloc(padded);
  if (p && oomlab::puzzle::watch().in_reader) count(malloc_usable_size(p));
  return p;
}
void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  if (void* const p = allocate_or_null(bytes, alignment)) return p;
  throw std::bad_alloc();
}
void release(void* p) noexcept {
  if (p && oomlab::puzzle::watch().in_reader) live -= static_cast<long long>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

std::size_t oomlab::puzzle::host_peak() { return peak > 0 ? std::size_t(peak.load()) : 0; }
void oomlab::puzzle::restart_host_peak() { live = peak = 0; }

// What is thrown is memory, too. The linker has this in place of the library's (--wrap); what was thrown stays counted until the call ends.
extern "C" void* __real___cxa_allocate_exception(std::size_t bytes) noexcept;
extern "C" void* __wrap___cxa_allocate_exception(std::size_t bytes) noexcept {
  if (oomlab::puzzle::watch().in_reader) count(bytes);
  return __real___cxa_allocate_exception(bytes);
}

void* operator new(std::size_t n) { return allocate(n); }
void* operator new[](std::size_t n) { return allocate(n); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate(n, static_cast<std::size_t>(a)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate_or_null(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate_or_null(n); }
void operator delete(void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { release(p); }
