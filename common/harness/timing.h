#pragma once
// The timing pass: separate from the memory pass, so that neither disturbs the other.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "harness/chapter.h"

namespace oomlab {

/// Runs `steps` steps (after one warm-up step) and returns the device time of each, in seconds, from CUDA events.
/// `on_step` is told after each one; what it throws ends the run.
std::vector<double> time_steps(Context& context, Workload& workload, std::size_t steps,
                               const std::function<void(double seconds)>& on_step = {});

/// The q-quantile (0…1) of values, interpolated. Throws std::invalid_argument when there are none.
double quantile(std::vector<double> values, double q);

/// One benchmark: times itself by calling `tick` with each step's seconds.
struct TimedRun {
  std::string name;
  std::function<void(const std::function<void(double seconds)>& tick)> run;
};

/// Gives Google Benchmark its flags (--benchmark_filter, --benchmark_out, …). Throws UsageError for one it has not.
/// `program` must live as long as benchmarks run: Google Benchmark keeps the pointer.
void set_benchmark_flags(char* program, const std::vector<std::string>& flags);
/// Hands runs to Google Benchmark (manual time, `steps` iterations each). A run that returns before it has ticked as
/// often is left out of the report. An exception of a run is thrown on when all have ended.
void run_benchmarks(std::size_t steps, const std::vector<TimedRun>& runs);

}  // namespace oomlab
