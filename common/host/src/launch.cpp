// Kernel launches.
//
// Fast mode: an OpenMP loop over blocks, one thread each. Check mode: blocks run on teams of real threads with a real
// barrier, two teams at a time, so that ThreadSanitizer sees a missing __syncthreads() and a race between blocks.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "runtime.h"

#ifdef OOMLAB_HOST_CHECK
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <thread>
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

// Where `expected` threads meet. Made of atomics and nothing else, because ThreadSanitizer takes any lock that one
// thread releases and another takes for an order between them, and would then miss races. So threads sleep by the
// system call itself, which it does not look at; threads that yield instead crawl on a machine with other work.
class Barrier {
 public:
  void reset(unsigned threads) { threads_ = expected_ = missing_ = threads; }
  void wait() {
    const unsigned phase = phase_.load(std::memory_order_acquire);
    if (!arrive())
      while (phase_.load(std::memory_order_acquire) == phase) futex(FUTEX_WAIT_PRIVATE, phase);
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
    futex(FUTEX_WAKE_PRIVATE, INT_MAX);
    return true;
  }
  void futex(int operation, unsigned value) {
    static_assert(sizeof phase_ == sizeof(unsigned) && std::atomic<unsigned>::is_always_lock_free);
    syscall(SYS_futex, reinterpret_cast<unsigned*>(&phase_), operation, value, nullptr, nullptr, 0);
  }
  unsigned threads_ = 0;
  std::atomic<unsigned> expected_{0}, missing_{0}, phase_{0};
};

constexpr unsigned teams = 2, most_threads = 3;
struct Team {
  Barrier inside, end;  // __syncthreads(); the end of a block
  alignas(64) std::byte slots[most_threads][64];
  alignas(64) std::byte shared[most_shared];
};
constinit thread_local Team* this_team = nullptr;

// The threads that play the blocks: started once, asleep between launches, never joined (they own nothing).
class Crew {
 public:
  Crew() {
    gate_.reset(teams * most_threads + 1);
    for (unsigned i = 0; i < teams * most_threads; ++i) std::thread([this, i] { work(i); }).detach();
  }

  void run(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
    const std::lock_guard one_at_a_time(launch_mutex_);
    job_ = {grid, std::min(most_threads, block.x), shared_bytes, &kernel};
    for (Team& team : team_) {
      team.inside.reset(job_.threads);
      team.end.reset(job_.threads);
    }
    gate_.wait();  // they begin,
    gate_.wait();  // and have ended
  }

 private:
  struct Job {
    dim3 grid;
    unsigned threads;
    std::size_t shared_bytes;
    const Kernel* kernel;
  };

  void work(unsigned index) {
    const RuntimeScope scope;
    for (;;) {
      // No thread starts before all are awake, or the late ones would seem to be ordered after the early.
      gate_.wait();
      if (const unsigned team = index / job_.threads; team < teams) play(team, index % job_.threads);
      gate_.wait();
    }
  }

  void play(unsigned team_index, unsigned thread) {
    const Job& job = job_;
    Team& team = *(this_team = &team_[team_index]);
    threadIdx.x = thread;
    blockDim = job.threads;
    gridDim = job.grid;
    for (unsigned b = team_index; b < job.grid.x; b += teams) {
      if (job.shared_bytes) {
        if (thread == 0) std::memset(team.shared, 0xff, job.shared_bytes);
        team.end.wait();
      }
      blockIdx.x = b;
      (*job.kernel)();
      team.inside.leave();
      team.end.wait();
    }
  }

  Team team_[teams];
  Job job_{};
  Barrier gate_;  // where the crew and whoever launches meet, before and after
  std::mutex launch_mutex_;
};

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  static Crew& crew = *new Crew;
  crew.run(grid, block, shared_bytes, kernel);
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
void block_barrier() { this_team->inside.wait(); }
void* block_slot(unsigned thread) { return this_team->slots[thread]; }
void* block_shared() { return this_team->shared; }
unsigned concurrent_blocks() { return 2 * teams; }  // more than play at once, so that a team plays several
#else
void* block_shared() { return this_shared; }
unsigned concurrent_blocks() { return static_cast<unsigned>(omp_get_max_threads()); }
#endif

}  // namespace detail
}  // namespace oomlab::host
