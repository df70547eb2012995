// How the blocks of a grid run: an OpenMP loop over blocks, one thread each. Check mode: a few threads a block, two blocks at a
// time (crew_check.h). bench/puzzling runs blocks another way, and has an object in place of this one's.

#include <algorithm>
#include <cstddef>

#include "runtime.h"

#ifdef OOMLAB_HOST_CHECK
#include "crew_check.h"
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

bool has_shape(dim3 grid, dim3 block) { return count(grid) == grid.x && count(block) == block.x; }  // one dimension

#ifdef OOMLAB_HOST_CHECK

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  constexpr unsigned most_played = 3;
  const Borrowed<CheckCrew<Team>> crew;
  crew->run(grid, std::min(most_played, block.x), shared_bytes, kernel);
}

namespace detail {

void block_barrier() { this_fiber->team->inside.wait(); }
void* block_slot(unsigned thread) { return this_fiber->team->slots[thread]; }
void* block_shared() { return this_fiber->team->shared; }
unsigned concurrent_blocks() { return 2 * teams; }  // more than play at once, so that a team plays several

}  // namespace detail

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

namespace detail {

void* block_shared() { return this_shared; }
unsigned concurrent_blocks() { return static_cast<unsigned>(omp_get_max_threads()); }

}  // namespace detail

#endif

}  // namespace oomlab::host
