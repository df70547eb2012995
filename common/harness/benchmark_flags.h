#pragma once
// Flags of Google Benchmark, --benchmark_..., checked here: it prints its usage, or ends the program, at a value that
// it does not like, and its own matcher of names may take for ever.

#include <string>

namespace oomlab {

/// Throws UsageError for a value that Google Benchmark would not take, and for a file of --benchmark_out= that cannot
/// be written. Flags that it does not know it tells itself.
void check_benchmark_flag(const std::string& flag);

/// The value of `flag` when it is `name`= something; empty otherwise.
std::string benchmark_value(const std::string& flag, const std::string& name);

/// Whether a --benchmark_filter asks for a benchmark of this name, as Google Benchmark reads it: empty and "all" for
/// every one, and after a minus sign what does not match.
bool matches_benchmark_filter(const std::string& filter, const std::string& name);

}  // namespace oomlab
