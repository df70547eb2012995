#pragma once

namespace oomlab {

#ifdef OOMLAB_HOST_CHECK
/// Threads a block that make a difference in check mode, for tests: one, and more than are played (three).
inline constexpr unsigned kDistinctBlockThreads[] = {1, 256};
#else
/// Threads a block that make a difference on the host, for tests: none do.
inline constexpr unsigned kDistinctBlockThreads[] = {256};
#endif

}  // namespace oomlab
