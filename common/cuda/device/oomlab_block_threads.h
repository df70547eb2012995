#pragma once

namespace oomlab {

/// Threads a block that make a difference on a GPU, for tests: one, one warp, some, many, all.
inline constexpr unsigned kDistinctBlockThreads[] = {1, 32, 96, 256, 1024};

}  // namespace oomlab
