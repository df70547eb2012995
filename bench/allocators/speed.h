#pragma once
// What an operation of an allocator costs a processor, ours and others.

namespace oomlab::bench {

/// Prints the table; `judge`: also rows for bench/benchmarks/run.
void compare_speed(bool judge);

}  // namespace oomlab::bench
