// How the blocks of a grid run.
//
// Fast mode: an OpenMP loop over blocks, one thread each. Check mode: a few threads a block, two blocks at a time (crew_check.h).
// With OOMLAB_HOST_WHOLE_BLOCKS, which bench/puzzle's builds have, a block has all threads that the launch asks for, in check mode
// as well as without it (crew_whole.h): there any kernel that is right on a GPU has to come out right.

#include <algorithm>
#include <cstddef>

#include "runtime.h"

#ifdef OOMLAB_HOST_THREADS
#ifdef OOMLAB_HOST_CHECK
#include "crew_check.h"
#else
#include "crew_whole.h"
#endif
#endif
#ifndef OOMLAB_HOST_CHECK
#include <omp.h>
#endif

constinit thread_local uint3 blockIdx{0, 0, 0};
constinit thread_local dim3 gridDim{1, 1, 1};
#ifdef OOMLAB_HOST_THREADS
constinit thread_local uint3 threadIdx{0, 0, 0};
constinit thread_local dim3 blockDim{1, 1, 1};
#endif

namespace oomlab::host {

#ifdef OOMLAB_HOST_WHOLE_BLOCKS
bool has_shape(dim3, dim3) { return true; }
#else
bool has_shape(dim3 grid, dim3 block) { return count(grid) == grid.x && count(block) == block.x; }  // one dimension
#endif

#ifdef OOMLAB_HOST_THREADS

OOMLAB_UNSEEN void let_others_run() {
  Fiber& me = *this_fiber;
  if (Fiber* const fresh = me.crew->recruit()) return switch_to(*fresh);
  if (me.next != &me) switch_to(*me.next);
}

namespace {

// A crew for one launch, from those that have nothing to do.
class Borrowed {
 public:
  Borrowed() {
    {
      const std::lock_guard lock(mutex());
      if (!idle().empty()) crew_ = idle().back(), idle().pop_back();
    }
    if (!crew_) crew_ = new Crew;
  }
  ~Borrowed() {
    const std::lock_guard lock(mutex());
    idle().push_back(crew_);
  }
  Crew* operator->() const { return crew_; }

 private:
  // Never destroyed: work may be left when a program ends.
  static std::mutex& mutex() {
    static std::mutex& instance = *new std::mutex;
    return instance;
  }
  static std::vector<Crew*>& idle() {
    static auto& instance = *new std::vector<Crew*>;
    return instance;
  }
  Crew* crew_ = nullptr;
};

}  // namespace

#ifdef OOMLAB_HOST_CHECK
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  const Borrowed crew;
  crew->run(grid, block, shared_bytes, kernel);
}
#else
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  const std::size_t blocks = count(grid);
  const int parts = int(std::min<std::size_t>(blocks, std::size_t(omp_get_max_threads())));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) {
    const Borrowed crew;
    crew->run(grid, block, blocks * part / parts, blocks * (part + 1) / parts, shared_bytes, kernel);
  }
}
#endif

#else

namespace {

alignas(64) constinit thread_local std::byte this_shared[most_shared] = {};

// What a launch may touch. Given back: a thread's memory becomes another's.
struct Entered {
  Entered(dim3 grid, [[maybe_unused]] std::size_t shared_bytes) {
    gridDim = grid;
    ASAN_POISON_MEMORY_REGION(this_shared + shared_bytes, most_shared - shared_bytes);
  }
  ~Entered() { ASAN_UNPOISON_MEMORY_REGION(this_shared, most_shared); }
};

}  // namespace

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

#endif

namespace detail {

#ifdef OOMLAB_HOST_THREADS
void block_barrier() { this_fiber->team->inside.wait(); }
void* block_slot(unsigned thread) { return this_fiber->team->slots[thread]; }
void* block_shared() { return this_fiber->team->shared; }
#else
void* block_shared() { return this_shared; }
#endif
#ifdef OOMLAB_HOST_WHOLE_BLOCKS
unsigned thread_of_block() { return this_fiber->number; }
void warp_barrier(unsigned mask) { this_fiber->team->warps[this_fiber->number / Warp::size].wait(mask); }
#endif

#ifdef OOMLAB_HOST_CHECK
unsigned concurrent_blocks() { return 2 * teams; }  // more than play at once, so that a team plays several
#else
unsigned concurrent_blocks() { return static_cast<unsigned>(omp_get_max_threads()); }
#endif

}  // namespace detail
}  // namespace oomlab::host
