#pragma once
// The threads of a block, where it has several: in check mode, and in bench/puzzling. A thread is a fiber: a context that the
// thread which launches switches to and from. ThreadSanitizer takes each for a thread of its own, and finds a race by what orders
// two accesses, not by when they happen: so nothing is lost by running one fiber at a time, and a barrier needs no help from the
// operating system.

#include <sys/mman.h>
#include <ucontext.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifdef OOMLAB_HOST_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <vector>

#include "runtime.h"

namespace oomlab::host {

inline constexpr unsigned most_threads = 1024;  // of a block

struct Fiber;
struct Team;
// Who plays the threads of a launch.
struct Crew {
  virtual ~Crew() = default;
  /// What a fiber does, without an end.
  virtual void work(Fiber& me) = 0;
  /// One that begins with a thread that has not begun; nullptr where there is none.
  virtual Fiber* recruit() { return nullptr; }
};

struct Fiber {
  ucontext_t context{};
  void* known_as = nullptr;      // to ThreadSanitizer
  const void* bottom = nullptr;  // its stack
  std::size_t stack_bytes = 0;
  unsigned number = 0;  // of the thread in its block; threadIdx is its place
  uint3 thread{0, 0, 0}, block{0, 0, 0};
  Fiber *next = nullptr, *before = nullptr;  // of those that are not done, in a ring
  Crew* crew = nullptr;
  Team* team = nullptr;

  /// A stack, and below it a page that nobody may touch. Throws std::bad_alloc.
  void make(Crew& mine) {
    crew = &mine;
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

 private:
  static void begin();
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
inline void Fiber::begin() {
  arrived(nullptr);
  this_fiber->crew->work(*this_fiber);
}

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
OOMLAB_UNSEEN inline void let_others_run() {
  Fiber& me = *this_fiber;
  if (Fiber* const fresh = me.crew->recruit()) return switch_to(*fresh);
  if (me.next != &me) switch_to(*me.next);
}

// Where `expected` threads meet. Made of atomics and nothing else: ThreadSanitizer takes any lock that one thread
// releases and another takes for an order between them, and would then miss races.
class Barrier {
 public:
  void reset(unsigned threads) { threads_ = expected_ = missing_ = threads; }
  void wait() {
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrive()) return;
    while (phase_.load(std::memory_order_relaxed) == phase) let_others_run();
    (void)phase_.load(std::memory_order_acquire);
  }
  void leave() {  // a thread that returned from the kernel is not waited for, until all have
    --expected_;
    arrive();
  }

 private:
  // ThreadSanitizer takes time for each acquire and release, as much as there are fibers: so each thread has one of both.
  bool arrive() {
    if (missing_.fetch_sub(1, std::memory_order_release) != 1) return false;
    (void)missing_.load(std::memory_order_acquire);  // of all that have arrived
    if (expected_ == 0) expected_ = threads_;
    missing_.store(expected_, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_release);
    return true;
  }
  unsigned threads_ = 0;
  std::atomic<unsigned> expected_{0}, missing_{0}, phase_{0};
};

// What the threads of a block share.
struct Team {
  Barrier inside, end;  // __syncthreads(); the end of a block
  alignas(64) std::byte slots[most_threads][64];
  alignas(64) std::byte shared[most_shared];

  void reset(unsigned threads) {
    inside.reset(threads);
    end.reset(threads);
  }
  /// This thread has returned from the kernel.
  void leave(unsigned /*number*/) { inside.leave(); }
};

// A crew for one launch, from those that have nothing to do.
template <class Which>
class Borrowed {
 public:
  Borrowed() {
    {
      const std::lock_guard lock(mutex());
      if (!idle().empty()) crew_ = idle().back(), idle().pop_back();
    }
    if (!crew_) crew_ = new Which;
  }
  ~Borrowed() {
    const std::lock_guard lock(mutex());
    idle().push_back(crew_);
  }
  Which* operator->() const { return crew_; }

 private:
  // Never destroyed: work may be left when a program ends.
  static std::mutex& mutex() {
    static std::mutex& instance = *new std::mutex;
    return instance;
  }
  static std::vector<Which*>& idle() {
    static auto& instance = *new std::vector<Which*>;
    return instance;
  }
  Which* crew_ = nullptr;
};

}  // namespace oomlab::host
