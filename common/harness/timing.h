#pragma once
// The timing pass: separate from the memory pass, so that neither disturbs the other.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "harness/chapter.h"

namespace oomlab {

/// Of a clock that never goes back.
double seconds_now();

/// How much of a workload is timed, and how much goes before: warm_up_steps and warm_up_seconds, then steps and
/// seconds, both at least. All ranks of a team must do equally many steps, so for them there are no seconds.
struct Pace {
  std::size_t steps;
  std::size_t warm_up_steps = 1;
  double warm_up_seconds = 0, seconds = 0;
  double (*now)() = seconds_now;  ///< for the warm-up
};
/// For a team one of whose steps takes `seconds_a_step`: as many steps as make up the seconds of `pace`.
Pace in_steps(const Pace& pace, double seconds_a_step);

/// Runs steps, and returns the device time of each one that counts, in seconds, from CUDA events. `on_step` is told
/// after each of these; what it throws ends the run.
std::vector<double> time_steps(Context& context, Workload& workload, const Pace& pace,
                               const std::function<void(double seconds)>& on_step = {});

/// How fast the machine is just now: passes a second of a fixed piece of work (a square matrix product in FP32, its
/// edge that of timing_needs(), and a copy of one of its matrices, 4 MiB at least), some of them, each one timed. Taken
/// around a variant's steps, it tells a slower program from a machine that had other things to do.
std::vector<double> reference_rates(Context& context);
/// Fewer timed steps are no basis for a comparison (bench/compare: FEWEST_REPETITIONS).
inline constexpr std::size_t kStepsToCompare = 5;

/// The q-quantile (0…1) of values, interpolated. Throws std::invalid_argument when there are none.
double quantile(std::vector<double> values, double q);

/// One benchmark: makes its work anew, does `steps` steps or more, and calls `tick` with each step's seconds.
struct TimedRun {
  std::string name;
  std::function<void(std::size_t steps, const std::function<void(double seconds)>& tick)> run;
};

/// Rounds that the timing pass goes through: in each, every variant has its turn with a share of the steps. What
/// happens to the machine in the meantime, and where memory happens to lie, shows in the spread.
inline constexpr std::size_t kTimingRounds = 3;
/// The steps of one round, of `steps` in all.
constexpr std::size_t steps_of_round(std::size_t steps, std::size_t round) {
  return steps / kTimingRounds + (round < steps % kTimingRounds);
}

/// Gives Google Benchmark its flags (--benchmark_filter, --benchmark_out, …). Throws UsageError for one it has not.
/// `program` must live as long as benchmarks run: Google Benchmark keeps the pointer.
void set_benchmark_flags(char* program, const std::vector<std::string>& flags);
/// Hands runs to Google Benchmark (manual time, `steps` iterations each, in rounds). A run that returns before it has
/// ticked as often is left out of the report. An exception of a run is thrown on when all have ended.
void run_benchmarks(std::size_t steps, const std::vector<TimedRun>& runs);

}  // namespace oomlab
