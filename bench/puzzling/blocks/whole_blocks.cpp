// How the blocks of a reader's kernel run, in place of the runtime's own blocks.cpp: with all threads that the launch asks for, in
// three dimensions, in check mode as well as without it. So any kernel that is right on a GPU has to come out right.

#include <algorithm>
#include <cstddef>
#include <cstdio>

#include "../watch.h"
#include "warps.h"
#ifdef OOMLAB_HOST_CHECK
#include "crew_check.h"
#else
#include <omp.h>

#include "crew_whole.h"
#endif

constinit thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
constinit thread_local dim3 blockDim{1, 1, 1}, gridDim{1, 1, 1};

namespace {

constinit thread_local bool kernel_is_running = false;  // all fibers of a thread of the host share it

}  // namespace

OOMLAB_UNSEEN bool oomlab::puzzle::in_kernel() { return kernel_is_running; }
OOMLAB_UNSEEN void oomlab::puzzle::set_in_kernel(bool now) { kernel_is_running = now; }

namespace oomlab::host {
namespace {

// ThreadSanitizer says a thread's name: those of one block have the same, and two blocks that run at a time have two.
#ifdef __SANITIZE_THREAD__
void name_after_block() {
  char name[32];
  std::snprintf(name, sizeof name, "block %p", static_cast<void*>(this_fiber->team));
  __tsan_set_fiber_name(this_fiber->known_as, name);
}
#else
void name_after_block() {}
#endif

// What a thread does. Others run on its thread of the host while it waits at a barrier, and nowhere else.
Kernel watched(const Kernel& kernel) {
  return [&kernel] {
    name_after_block();
    puzzle::set_in_kernel(true);
    kernel();
    puzzle::set_in_kernel(false);
  };
}
template <class Wait>
void wait_outside(Wait wait) {
  puzzle::set_in_kernel(false);
  wait();
  puzzle::set_in_kernel(true);
}

}  // namespace

bool has_shape(dim3, dim3) { return true; }

#ifdef OOMLAB_HOST_CHECK
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  const Borrowed<CheckCrew<WarpTeam>> crew;
  crew->run(grid, block, shared_bytes, watched(kernel));
}
#else
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  const std::size_t blocks = count(grid);
  const Kernel mine = watched(kernel);
  const int parts = int(std::min<std::size_t>(blocks, std::size_t(omp_get_max_threads())));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) {
    const Borrowed<WholeCrew> crew;
    crew->run(grid, block, blocks * part / parts, blocks * (part + 1) / parts, shared_bytes, mine);
  }
}
#endif

namespace detail {

void block_barrier() {
  wait_outside([] { this_fiber->team->inside.wait(); });
}
void* block_slot(unsigned thread) { return this_fiber->team->slots[thread]; }
void* block_shared() { return this_fiber->team->shared; }
unsigned thread_of_block() { return this_fiber->number; }
void warp_barrier(unsigned mask) {
  wait_outside([mask] { static_cast<WarpTeam*>(this_fiber->team)->warps[this_fiber->number / Warp::size].wait(mask); });
}

}  // namespace detail
}  // namespace oomlab::host
