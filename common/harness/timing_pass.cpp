#include "harness/timing_pass.h"

#include <fmt/format.h>

#include <cstring>

#include "cuda/backend.h"
#include "harness/devices.h"
#include "harness/processes.h"
#include "harness/ranks.h"
#include "harness/timing.h"

namespace oomlab {
namespace {

// Samples per second of each step.
std::vector<double> rates_of(Context& context, Workload& work, const Pace& pace,
                             const std::function<void(double)>& tick) {
  auto rates = time_steps(context, work, pace, [&](double s) {
    check_interrupt();
    tick(s);
  });
  const auto samples = static_cast<double>(work.samples_per_step());
  for (double& r : rates) r = samples / r;
  return rates;
}

// What a device needs, in a round of so many steps.
Pace pace_of(std::size_t steps) {
  const TimingNeeds needs = timing_needs();
  return {steps, 1, needs.warm_up_seconds, needs.seconds_a_round};
}

// Returns rank 0's rates.
std::vector<double> time_ranks(const Config& config, const Variant& variant, bool fits, const Pace& pace,
                               const std::function<void(double)>& tick) {
  std::vector<double> rates;
  const std::unique_ptr<Team> team = variant.team(variant.batch);
  std::vector<int> ranks(static_cast<std::size_t>(team->ranks()));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  on_ranks(*team, ranks, [&](int rank) {
    Config mine = config;
    mine.device = device_of(config, rank);
    Ledger ledger;
    const std::vector<int> peers = devices_of_team(config, team->ranks());
    with_context(mine, variant, peers, {fits ? config.budget : kUnlimited}, ledger, [&](Context& context) {
      const auto work = team->make(context, rank);
      auto mine = rates_of(context, *work, pace, [&](double s) {
        if (rank == 0) tick(s);
      });
      if (rank == 0) rates = std::move(mine);
    });
    return std::string();
  });
  return rates;
}

// `seconds_a_step` is 0 until a step was timed: where times need so many seconds, one step goes before the first round,
// and all ranks are told how many to do from then on.
void time_team(const Config& config, const Variant& variant, bool fits, std::size_t steps, double& seconds_a_step,
               VariantResult& result, const std::function<void(double)>& tick) {
  const Pace pace = pace_of(steps);
  if (seconds_a_step == 0 && (pace.seconds > 0 || pace.warm_up_seconds > 0)) {
    double seconds = 0;
    (void)time_ranks(config, variant, fits, {1}, [&](double s) { seconds = s; });
    made_by_the_first_process(&seconds_a_step, sizeof seconds_a_step, [&] { seconds_a_step = seconds; });
  }
  for (const double rate : time_ranks(config, variant, fits, in_steps(pace, seconds_a_step), tick))
    result.samples_per_second.push_back(rate);
}

// How fast the machine is before and after a variant's steps, in memory of its own. Nobody compares the times of a few
// steps only.
void add_reference_rates(const Config& config, VariantResult& result) {
  if (config.steps < kStepsToCompare) return;
  Ledger ledger;
  with_context(config, kUnlimited, ledger, [&](Context& context) {
    for (const double rate : reference_rates(context)) result.reference_rates.push_back(rate);
  });
}

void time_alone(Context& context, const Variant& variant, std::size_t steps, VariantResult& result,
                const std::function<void(double)>& tick) {
  const auto work = variant.make(context, variant.batch);
  for (const double rate : rates_of(context, *work, pace_of(steps), tick)) result.samples_per_second.push_back(rate);
}

}  // namespace

void run_timing_pass(const Config& config, const std::vector<const Variant*>& variants,
                     std::vector<VariantResult>& results, const Progress& progress) {
  std::vector<TimedRun> runs;
  std::vector<double> seconds_a_step(variants.size(), 0);  // of a team
  for (std::size_t i = 0; i < variants.size(); ++i) {
    // Simulated devices share this machine's processor: the time of several says nothing.
    if (!results[i].measured || (variants[i]->team && std::strcmp(backend_name(), "host") == 0)) continue;
    runs.push_back({results[i].name, [&, i](std::size_t steps, const std::function<void(double)>& tick) {
                      const Variant& variant = *variants[i];
                      VariantResult& result = results[i];
                      if (result.samples_per_second.empty())
                        progress(fmt::format("{}: timing {} steps", variant.name, config.steps));
                      // Timed as it was measured: one that does not fit the budget runs without it.
                      const bool fits = result.outcome == VariantResult::Outcome::ok;
                      const NamedRange range((variant.name + ", timed").c_str());
                      Ledger ledger;
                      try {
                        if (variant.team)
                          return time_team(config, variant, fits, steps, seconds_a_step[i], result, tick);
                        (void)on_first_process([&] {
                          add_reference_rates(config, result);
                          with_context(config, variant, {}, {fits ? config.budget : kUnlimited}, ledger,
                                       [&](Context& context) { time_alone(context, variant, steps, result, tick); });
                          add_reference_rates(config, result);
                          return std::string();
                        });
                      } catch (const std::runtime_error& error) {
                        // It fitted a moment ago, so somebody else took the memory: the bytes stand, the times lack.
                        if (!is_device_out_of_memory(error)) throw;
                        if (result.reason.find("not timed") != std::string::npos) return;  // an earlier round said it
                        result.reason += fmt::format("{}not timed, out of memory: {}",
                                                     result.reason.empty() ? "" : "; ", error.what());
                      }
                    }});
  }
  if (runs.empty()) return;  // nothing fits this device; Google Benchmark would complain
  if (processes().rank() == 0) return run_benchmarks(config.steps, runs);
  for (std::size_t round = 0; round < kTimingRounds; ++round)
    for (const TimedRun& timed : runs)
      if (const std::size_t steps = steps_of_round(config.steps, round)) timed.run(steps, [](double) {});
}

}  // namespace oomlab
