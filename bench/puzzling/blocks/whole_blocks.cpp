// How the blocks of a reader's kernel run, in place of the runtime's own blocks.cpp: with all threads that the launch asks for, in
// three dimensions, in check mode as well as without it. So any kernel that is right on a GPU has to come out right.

#include <algorithm>
#include <cstddef>

#include "warps.h"
#ifdef OOMLAB_HOST_CHECK
#include "crew_check.h"
#else
#include <omp.h>

#include "crew_whole.h"
#endif

constinit thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
constinit thread_local dim3 blockDim{1, 1, 1}, gridDim{1, 1, 1};

namespace oomlab::host {

bool has_shape(dim3, dim3) { return true; }

#ifdef OOMLAB_HOST_CHECK
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  const Borrowed<CheckCrew<WarpTeam>> crew;
  crew->run(grid, block, shared_bytes, kernel);
}
#else
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  const std::size_t blocks = count(grid);
  const int parts = int(std::min<std::size_t>(blocks, std::size_t(omp_get_max_threads())));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) {
    const Borrowed<WholeCrew> crew;
    crew->run(grid, block, blocks * part / parts, blocks * (part + 1) / parts, shared_bytes, kernel);
  }
}
#endif

namespace detail {

void block_barrier() { this_fiber->team->inside.wait(); }
void* block_slot(unsigned thread) { return this_fiber->team->slots[thread]; }
void* block_shared() { return this_fiber->team->shared; }
unsigned thread_of_block() { return this_fiber->number; }
void warp_barrier(unsigned mask) {
  static_cast<WarpTeam*>(this_fiber->team)->warps[this_fiber->number / Warp::size].wait(mask);
}

}  // namespace detail
}  // namespace oomlab::host
