// Counts what the reader's code takes of the host's memory in containers: an array that was moved there is not saved. A block counts from
// the reader's new to its delete, whoever calls that, and however many calls lie between; what static initialisers take counts, too.

#include <malloc.h>
#include <unwind.h>

#include <cstdlib>
#include <functional>
#include <mutex>
#include <new>
#include <unordered_map>

#include "watch.h"

extern "C" char __executable_start;

namespace {

using oomlab::puzzle::watch;

// For what counts itself: operator new would ask it.
template <class T>
struct Malloc {
  using value_type = T;
  Malloc() = default;
  template <class U>
  Malloc(const Malloc<U>&) {}
  T* allocate(std::size_t n) {
    if (void* const p = std::malloc(n * sizeof(T))) return static_cast<T*>(p);
    throw std::bad_alloc();
  }
  void deallocate(T* p, std::size_t) { std::free(p); }
  bool operator==(const Malloc&) const { return true; }
};

class Count {
 public:
  void add(void* p) {
    const std::lock_guard lock(mutex_);
    live_ += blocks_[p] = malloc_usable_size(p);
    note();
  }
  void remove(void* p) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(p);
    if (found == blocks_.end()) return;  // not the reader's
    live_ -= found->second;
    blocks_.erase(found);
  }
  void add_thrown(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    thrown_ += bytes;
    note();
  }
  void begin_call() {
    const std::lock_guard lock(mutex_);
    thrown_ = 0;
    peak_ = live_;
  }
  std::size_t peak() {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  void note() {
    if (live_ + thrown_ > peak_) peak_ = live_ + thrown_;
  }
  std::mutex mutex_;
  std::unordered_map<void*, std::size_t, std::hash<void*>, std::equal_to<>, Malloc<std::pair<void* const, std::size_t>>>
      blocks_;
  std::size_t live_ = 0, thrown_ = 0, peak_ = 0;  // bytes
};

// Static initialisers of other files ask for it, and what ends behind main() does: so it is made when it is needed, and never destroyed.
Count& count() {
  alignas(Count) static char storage[sizeof(Count)];
  static Count& instance = *new (storage) Count;
  return instance;
}
constinit bool before_main = true;

// Where the code is that asked for memory, the innermost first, as JSON.
std::string callers() {
  std::string json;
  _Unwind_Backtrace(
      [](_Unwind_Context* context, void* all) {
        std::string& list = *static_cast<std::string*>(all);
        const auto place = _Unwind_GetIP(context) - 1 - reinterpret_cast<std::uintptr_t>(&__executable_start);
        list += (list.empty() ? "" : ", ") + std::to_string(place);
        return list.size() < 400 ? _URC_NO_REASON : _URC_END_OF_STACK;
      },
      &json);
  return "[" + json + "]";
}
// On a GPU what a kernel takes so comes from a heap of the device's that no budget sees, once for each thread.
void refuse_in_kernel() {
  if (!oomlab::puzzle::in_kernel()) return;
  oomlab::puzzle::set_in_kernel(false);  // what follows is ours
  oomlab::puzzle::end("kernel_heap",
                      "\"case\": " + oomlab::puzzle::quoted(watch().case_name) + ", \"pc\": " + callers());
}
void* allocate_or_null(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) noexcept {
  refuse_in_kernel();
  const std::size_t padded = (bytes + alignment) / alignment * alignment;
  void* const p = alignment > alignof(std::max_align_t) ? std::aligned_alloc(alignment, padded) : std::malloc(padded);
  if (p && (before_main || watch().in_reader)) count().add(p);
  return p;
}
void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  if (void* const p = allocate_or_null(bytes, alignment)) return p;
  throw std::bad_alloc();
}
void release(void* p) noexcept {
  if (p) count().remove(p);
  std::free(p);
}

}  // namespace

std::size_t oomlab::puzzle::host_peak() { return count().peak(); }
void oomlab::puzzle::begin_host_peak() { count().begin_call(); }
void oomlab::puzzle::end_static_initialisers() { before_main = false; }

// What is thrown is memory, too. The linker has this in place of the library's (--wrap); what was thrown stays counted until the call ends.
extern "C" void* __real___cxa_allocate_exception(std::size_t bytes) noexcept;
extern "C" void* __wrap___cxa_allocate_exception(std::size_t bytes) noexcept {
  refuse_in_kernel();
  if (watch().in_reader) count().add_thrown(bytes);
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
