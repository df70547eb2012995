#pragma once
// The threads of a block, where it has several: in check mode, and where OOMLAB_HOST_WHOLE_BLOCKS asks for all of them. A
// thread is a fiber: a context that the thread which launches switches to and from. ThreadSanitizer takes each for a thread of
// its own, and finds a race by what orders two accesses, not by when they happen: so nothing is lost by running one fiber at a
// time, and a barrier needs no help from the operating system.

#include <sys/mman.h>
#include <ucontext.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifdef OOMLAB_HOST_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <new>

#include "runtime.h"

namespace oomlab::host {

#ifdef OOMLAB_HOST_WHOLE_BLOCKS
inline constexpr unsigned most_threads = 1024;  // of a block
inline dim3 played(dim3 block) { return block; }
#else
inline constexpr unsigned most_threads = 3;
inline dim3 played(dim3 block) { return std::min(most_threads, block.x); }
#endif

struct Fiber {
  ucontext_t context{};
  void* known_as = nullptr;      // to ThreadSanitizer
  const void* bottom = nullptr;  // its stack
  std::size_t stack_bytes = 0;
  unsigned number = 0;  // of the thread in its block; threadIdx is its place
  uint3 thread{0, 0, 0}, block{0, 0, 0};
  Fiber *next = nullptr, *before = nullptr;  // of those that are not done, in a ring
  class Crew* crew = nullptr;
  struct Team* team = nullptr;

  /// A stack, and below it a page that nobody may touch. Throws std::bad_alloc.
  void make(void (*begin)()) {
    constexpr std::size_t page = 64 << 10, usable = 256 << 10;
    void* const memory =
        mmap(nullptr, page + usable, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    (void)mprotect(memory, page, PROT_NONE);
    bottom = static_cast<std::byte*>(memory) + page;
    stack_bytes = usable;
    getcontext(&context);
    context.uc_stack = {.ss_sp = const_cast<void*>(bottom), .ss_flags = 0, .ss_size = usable};
    makecontext(&context, begin, 0);
    context.uc_stack.ss_size = 0;  // AddressSanitizer would clear what it knows of this stack at every switch
#ifdef __SANITIZE_THREAD__
    known_as = __tsan_create_fiber(0);
#endif
  }
};
inline constinit thread_local Fiber* this_fiber = nullptr;

// What is marked so is not looked at by ThreadSanitizer: it must find no race in what all fibers of a thread share, and no
// order between them in it. Never inline: the address of what is a thread's own is asked for again after each switch.
#define OOMLAB_UNSEEN __attribute__((no_sanitize("thread"), noinline))

#ifdef OOMLAB_HOST_ASAN
inline constinit thread_local Fiber* switched_from = nullptr;
/// The first thing to be done after a switch.
OOMLAB_UNSEEN inline void arrived(void* fake_stack) {
  __sanitizer_finish_switch_fiber(fake_stack, &switched_from->bottom, &switched_from->stack_bytes);
}
#else
inline void arrived(void*) {}
#endif

OOMLAB_UNSEEN inline void switch_to(Fiber& to) {
  Fiber& from = *this_fiber;
  this_fiber = &to;
  threadIdx = to.thread;
  blockIdx = to.block;
  void* fake_stack = nullptr;
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(to.known_as, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef OOMLAB_HOST_ASAN
  switched_from = &from;
  __sanitizer_start_switch_fiber(&fake_stack, to.bottom, to.stack_bytes);
#endif
  swapcontext(&from.context, &to.context);
  arrived(fake_stack);
}
OOMLAB_UNSEEN inline void join_ring(Fiber& me, Fiber& after) {
  me.before = &after;
  me.next = after.next;
  after.next->before = &me;
  after.next = &me;
}
OOMLAB_UNSEEN inline void leave_ring(Fiber& launcher) {
  Fiber& me = *this_fiber;
  me.before->next = me.next;
  me.next->before = me.before;
  switch_to(me.next == &me ? launcher : *me.next);
}
void let_others_run();

// Where `expected` threads meet. Made of atomics and nothing else: ThreadSanitizer takes any lock that one thread
// releases and another takes for an order between them, and would then miss races.
class Barrier {
 public:
  void reset(unsigned threads) { threads_ = expected_ = missing_ = threads; }
  void wait() {
    const unsigned phase = phase_.load(std::memory_order_acquire);
    if (!arrive())
      while (phase_.load(std::memory_order_acquire) == phase) let_others_run();
  }
  void leave() {  // a thread that returned from the kernel is not waited for, until all have
    --expected_;
    arrive();
  }

 private:
  bool arrive() {
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
    if (expected_ == 0) expected_ = threads_;
    missing_.store(expected_, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_release);
    return true;
  }
  unsigned threads_ = 0;
  std::atomic<unsigned> expected_{0}, missing_{0}, phase_{0};
};

#ifdef OOMLAB_HOST_WHOLE_BLOCKS
// Where the threads of a warp meet that a mask names. While some wait with one mask, others may meet with another: a mask has
// a group for itself as long as somebody waits there, and no more groups than threads are needed at a time.
class Warp {
 public:
  static constexpr unsigned size = 32;
  void reset(unsigned threads) { all_ = alive_ = threads < size ? (1u << threads) - 1 : ~0u; }
  void wait(unsigned mask) {
    Group& group = group_of(mask);
    const unsigned phase = group.phase.load(std::memory_order_acquire);
    group.arrived.fetch_add(1, std::memory_order_acq_rel);
    open_if_all(group);
    while (group.phase.load(std::memory_order_acquire) == phase) let_others_run();
  }
  void leave(unsigned lane) {  // a thread that returned from the kernel is not waited for, until all have
    const unsigned me = 1u << lane;
    if (alive_.fetch_and(~me, std::memory_order_acq_rel) == me) alive_.store(all_, std::memory_order_relaxed);
    for (Group& group : groups_)
      if (group.arrived.load(std::memory_order_acquire)) open_if_all(group);
  }

 private:
  struct Group {
    std::atomic<unsigned> mask{0}, arrived{0}, phase{0};
  };
  Group& group_of(unsigned mask) {
    Group* unused = nullptr;
    for (Group& group : groups_) {
      const bool waited_at = group.arrived.load(std::memory_order_relaxed) != 0;
      if (waited_at && group.mask.load(std::memory_order_relaxed) == mask) return group;
      if (!waited_at) unused = &group;
    }
    unused->mask.store(mask, std::memory_order_relaxed);
    return *unused;
  }
  void open_if_all(Group& group) {
    const unsigned awaited = group.mask.load(std::memory_order_relaxed) & alive_.load(std::memory_order_relaxed);
    if (group.arrived.load(std::memory_order_relaxed) < unsigned(std::popcount(awaited))) return;
    group.arrived.store(0, std::memory_order_relaxed);
    group.phase.fetch_add(1, std::memory_order_release);
  }
  unsigned all_ = 0;
  std::atomic<unsigned> alive_{0};
  Group groups_[size];
};
#endif

// What the threads of a block share.
struct Team {
  Barrier inside, end;  // __syncthreads(); the end of a block
#ifdef OOMLAB_HOST_WHOLE_BLOCKS
  Warp warps[most_threads / Warp::size];
#endif
  alignas(64) std::byte slots[most_threads][64];
  alignas(64) std::byte shared[most_shared];

  void reset(unsigned threads) {
    inside.reset(threads);
    end.reset(threads);
#ifdef OOMLAB_HOST_WHOLE_BLOCKS
    for (unsigned w = 0; w * Warp::size < threads; ++w) warps[w].reset(threads - w * Warp::size);
#endif
  }
  /// A thread has returned from the kernel.
  void leave([[maybe_unused]] unsigned thread) {
#ifdef OOMLAB_HOST_WHOLE_BLOCKS
    warps[thread / Warp::size].leave(thread % Warp::size);
#endif
    inside.leave();
  }
};

}  // namespace oomlab::host
