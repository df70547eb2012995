#include "harness/timing_pass.h"

#include <fmt/format.h>

#include <cstring>

#include "cuda/backend.h"
#include "harness/devices.h"
#include "harness/interrupt.h"
#include "harness/processes.h"
#include "harness/ranks.h"
#include "harness/timing.h"

namespace oomlab {
namespace {

// Samples a second of each step.
std::vector<double> rates_of(Context& context, Workload& work, std::size_t steps,
                             const std::function<void(double)>& tick, double warm_up) {
  auto rates = time_steps(
      context, work, steps,
      [&](double s) {
        check_interrupt();
        tick(s);
      },
      warm_up);
  const auto samples = static_cast<double>(work.samples_per_step());
  for (double& r : rates) r = samples / r;
  return rates;
}

void time_team(const Config& config, const Variant& variant, bool fits, std::size_t steps, VariantResult& result,
               const std::function<void(double)>& tick) {
  const std::unique_ptr<Team> team = variant.team(variant.batch);
  std::vector<int> ranks(static_cast<std::size_t>(team->ranks()));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  on_ranks(*team, ranks, [&](int rank) {
    Config mine = config;
    mine.device = device_of(config, rank);
    Ledger ledger;
    const std::vector<int> peers = devices_of_team(config, team->ranks());
    with_context(mine, variant, peers, fits ? config.budget : kUnlimited, ledger, [&](Context& context) {
      const auto work = team->make(context, rank);
      for (const double rate : rates_of(
               context, *work, steps,
               [&](double s) {
                 if (rank == 0) tick(s);
               },
               /*warm_up=*/0))
        if (rank == 0) result.samples_per_second.push_back(rate);
    });
    return std::string();
  });
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
  for (const double rate : rates_of(context, *work, steps, tick, warm_up_seconds()))
    result.samples_per_second.push_back(rate);
}

}  // namespace

void run_timing_pass(const Config& config, const std::vector<const Variant*>& variants,
                     std::vector<VariantResult>& results, const Progress& progress) {
  std::vector<TimedRun> runs;
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
                      Ledger ledger;
                      try {
                        if (variant.team) return time_team(config, variant, fits, steps, result, tick);
                        (void)on_first_process([&] {
                          add_reference_rates(config, result);
                          with_context(config, variant, {}, fits ? config.budget : kUnlimited, ledger,
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
