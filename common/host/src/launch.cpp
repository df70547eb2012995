// Kernel launches.
//
// Fast mode: an OpenMP loop over blocks, one thread each. Check mode: blocks run on teams of threads with a barrier, two
// teams at a time, so that ThreadSanitizer sees a missing __syncthreads() and a race between blocks.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "runtime.h"

#ifdef OOMLAB_HOST_CHECK
#include <ucontext.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include <array>
#include <memory>
#include <mutex>
#include <vector>
#else
#include <omp.h>
#endif

constinit thread_local uint3 blockIdx{0, 0, 0};
constinit thread_local dim3 gridDim{1, 1, 1};
#ifdef OOMLAB_HOST_CHECK
constinit thread_local uint3 threadIdx{0, 0, 0};
constinit thread_local dim3 blockDim{1, 1, 1};
#endif

namespace oomlab::host {
namespace {

using Kernel = std::function<void()>;
std::size_t count(dim3 d) { return std::size_t(d.x) * d.y * d.z; }
constexpr std::size_t most_shared = 48 << 10;  // bytes of dynamic shared memory that any kernel may have

#ifndef OOMLAB_HOST_CHECK

alignas(64) constinit thread_local std::byte this_shared[most_shared] = {};

// What a launch may touch. Given back: a thread's memory becomes another's.
struct Entered {
  Entered(dim3 grid, [[maybe_unused]] std::size_t shared_bytes) {
    gridDim = grid;
    ASAN_POISON_MEMORY_REGION(this_shared + shared_bytes, most_shared - shared_bytes);
  }
  ~Entered() { ASAN_UNPOISON_MEMORY_REGION(this_shared, most_shared); }
};

void run_grid(dim3 grid, dim3, std::size_t shared_bytes, const Kernel& kernel) {
  const long blocks = static_cast<long>(grid.x);
  const auto run_block = [&](long b) {
    blockIdx.x = static_cast<unsigned>(b);
    kernel();
  };
  if (blocks == 1) {
    const Entered entered(grid, shared_bytes);
    run_block(0);
    return;
  }
#pragma omp parallel
  {
    const Entered entered(grid, shared_bytes);
#pragma omp for schedule(static) nowait
    for (long b = 0; b < blocks; ++b) run_block(b);
  }
}

#else

constexpr unsigned teams = 2, most_threads = 3;

// A thread of check mode is a fiber: a context that the thread which launches switches to and from. ThreadSanitizer takes
// each for a thread of its own, and finds a race by what orders two accesses, not by when they happen: so nothing is lost
// by running one fiber at a time, and a barrier needs no help from the operating system.
struct Fiber {
  ucontext_t context{};
  void* known_as = nullptr;  // to ThreadSanitizer
  std::unique_ptr<std::byte[]> stack;
  uint3 thread{0, 0, 0}, block{0, 0, 0};
  Fiber* next = nullptr;  // of those that are not done, in a ring
  class Crew* crew = nullptr;
  struct Team* team = nullptr;
};
constinit thread_local Fiber* this_fiber = nullptr;

// The next three are not looked at by ThreadSanitizer: it must find no race in what all fibers of a thread share, and no
// order between them in it.
#define OOMLAB_UNSEEN __attribute__((no_sanitize("thread"), noinline))

OOMLAB_UNSEEN void switch_to(Fiber& to) {
  Fiber& from = *this_fiber;
  this_fiber = &to;
  threadIdx = to.thread;
  blockIdx = to.block;
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(to.known_as, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&from.context, &to.context);
}
OOMLAB_UNSEEN void let_others_run() {
  if (this_fiber->next != this_fiber) switch_to(*this_fiber->next);
}
OOMLAB_UNSEEN void leave_ring(Fiber& launcher) {
  Fiber* const me = this_fiber;
  Fiber* before = me;
  while (before->next != me) before = before->next;
  before->next = me->next;
  switch_to(before == me ? launcher : *me->next);
}

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

struct Team {
  Barrier inside, end;  // __syncthreads(); the end of a block
  alignas(64) std::byte slots[most_threads][64];
  alignas(64) std::byte shared[most_shared];
};

// The fibers that play the blocks of one launch. Made once, and kept for the next.
class Crew {
 public:
  Crew() {
    for (Fiber& fiber : fibers_) make(fiber);
  }

  void run(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
    const RuntimeScope scope;
    const unsigned threads = std::min(most_threads, block.x), playing = std::min(teams, grid.x) * threads;
    job_ = {grid, threads, shared_bytes, &kernel};
    for (unsigned i = 0; i < playing; ++i) {
      fibers_[i].thread.x = i % threads;
      fibers_[i].team = &team_[i / threads];
      fibers_[i].next = &fibers_[(i + 1) % playing];
    }
    for (Team& team : team_) {
      team.inside.reset(threads);
      team.end.reset(threads);
    }
    blockDim = threads;
    gridDim = grid;
#ifdef __SANITIZE_THREAD__
    launcher_.known_as = __tsan_get_current_fiber();
#endif
    begun_.store(1, std::memory_order_release);
    start();
    (void)ended_.load(std::memory_order_acquire);
  }

 private:
  struct Job {
    dim3 grid;
    unsigned threads;
    std::size_t shared_bytes;
    const Kernel* kernel;
  };

  void make(Fiber& fiber) {
    constexpr std::size_t stack_bytes = 256 << 10;
    fiber.stack = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
    fiber.crew = this;
    getcontext(&fiber.context);
    fiber.context.uc_stack = {.ss_sp = fiber.stack.get(), .ss_flags = 0, .ss_size = stack_bytes};
    makecontext(&fiber.context, [] { this_fiber->crew->work(*this_fiber); }, 0);
#ifdef __SANITIZE_THREAD__
    fiber.known_as = __tsan_create_fiber(0);
#endif
  }
  OOMLAB_UNSEEN void start() {
    this_fiber = &launcher_;
    switch_to(fibers_[0]);
  }

  // Keeps nothing of the thread it runs on: the next launch may be another one's.
  void work(Fiber& me) {
    for (;;) {
      (void)begun_.load(std::memory_order_acquire);
      play(me);
      ended_.fetch_add(1, std::memory_order_release);
      leave_ring(launcher_);
    }
  }

  __attribute__((noinline)) void play(Fiber& me) {
    const Job& job = job_;
    Team& team = *me.team;
    for (unsigned b = static_cast<unsigned>(&team - team_); b < job.grid.x; b += teams) {
      if (job.shared_bytes) {
        if (me.thread.x == 0) std::memset(team.shared, 0xff, job.shared_bytes);
        team.end.wait();
      }
      enter(me, b);
      (*job.kernel)();
      team.inside.leave();
      team.end.wait();
    }
  }
  OOMLAB_UNSEEN void enter(Fiber& me, unsigned b) { blockIdx.x = me.block.x = b; }

  Team team_[teams];
  std::array<Fiber, teams * most_threads> fibers_;
  Fiber launcher_;
  Job job_{};
  std::atomic<unsigned> begun_{0}, ended_{0};  // what orders a launch and its fibers
};
#undef OOMLAB_UNSEEN

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  static std::mutex& mutex = *new std::mutex;  // never destroyed: work may be left when a program ends
  static auto& idle = *new std::vector<Crew*>;
  Crew* crew = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (!idle.empty()) crew = idle.back(), idle.pop_back();
  }
  if (!crew) crew = new Crew;
  crew->run(grid, block, shared_bytes, kernel);
  const std::lock_guard lock(mutex);
  idle.push_back(crew);
}

#endif

}  // namespace

namespace detail {

cudaError_t launch(const cudaLaunchConfig_t* config, const void* function, const void* closure,
                   Kernel (*copy)(const void*)) noexcept {
  return entry<cudaErrorLaunchOutOfResources>("cudaLaunchKernelEx", [&] {
    require(config && function);
    require(config->numAttrs == 0, cudaErrorNotSupported);
    const dim3 g = config->gridDim, b = config->blockDim;
    require(count(g) && g.x <= 2147483647 && g.y <= 65535 && g.z <= 65535 && count(b) && count(b) <= 1024 &&
                b.z <= 64 && config->dynamicSmemBytes <= most_shared,
            cudaErrorInvalidConfiguration);
    require(count(g) == g.x && count(b) == b.x, cudaErrorNotSupported);  // they have one dimension here
    CUstream_st& stream = find_stream(config->stream);
    require(stream.device == current_device(), cudaErrorInvalidResourceHandle);
    ++runtime().work[stream.device].launches;
    if (runtime().planning) return;
    execute(stream, [config = *config, kernel = copy(closure)] {
      run_grid(config.gridDim, config.blockDim, config.dynamicSmemBytes, kernel);
    });
  });
}

#ifdef OOMLAB_HOST_CHECK
void block_barrier() { this_fiber->team->inside.wait(); }
void* block_slot(unsigned thread) { return this_fiber->team->slots[thread]; }
void* block_shared() { return this_fiber->team->shared; }
unsigned concurrent_blocks() { return 2 * teams; }  // more than play at once, so that a team plays several
#else
void* block_shared() { return this_shared; }
unsigned concurrent_blocks() { return static_cast<unsigned>(omp_get_max_threads()); }
#endif

}  // namespace detail
}  // namespace oomlab::host
