#pragma once
// How many threads a block has: for what does not start kernels itself, and so needs none of cuda/launch.h.

#include <oomlab_block_threads.h>

namespace oomlab {

/// As many threads as a block can have. A kernel that needs more than 64 registers is not started with so many, unless
/// it is compiled for them: __global__ void __launch_bounds__(kMostBlockThreads) (tests/sass finds those kernels).
inline constexpr unsigned kMostBlockThreads = 1024;
/// Threads a block of every portable kernel; the tests set it to each of kDistinctBlockThreads (oomlab_block_threads.h).
unsigned block_threads() noexcept;
/// Changes block_threads() for this process. Throws std::invalid_argument outside 1…kMostBlockThreads.
void set_block_threads(unsigned threads);

}  // namespace oomlab
