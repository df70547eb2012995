// What the harness costs: the same training steps inside time_steps() under Google Benchmark, as the timing pass of a
// chapter runs them, and in a bare loop. Interleaved, medians, one run. --check 1.01 makes a larger ratio an error.
//
// Floors of a step, P parameters, batch B: 6·P·B FLOPs; and with AdamW at least 7 passes over 4·P bytes (weights read
// and written, gradients read, both moments read and written).

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "../chapters/00_anatomy/training.h"
#include "harness/timing.h"

namespace {

using namespace oomlab;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int run(double limit) {
  constexpr std::size_t steps = 60, rounds = 15;
  const nn::MlpSpec spec = nn::parse_model("mlp:64-1024-1024-10");
  const data::Dataset dataset = data::digits();
  std::vector<double> ratios, bare_seconds;
  Config config;
  Ledger ledger;
  with_context(config, kUnlimited, ledger, [&](Context& context) {
    chapters::Training training(context, dataset, spec, nn::OptimizerKind::adamw, 32);
    const auto bare = [&] {
      training.step();
      context.synchronize();
      const double start = now();
      for (std::size_t i = 0; i < steps; ++i) {
        training.step();
        context.synchronize();
      }
      return now() - start;
    };
    const auto inside = [&] {
      double seconds = 0;
      run_benchmarks(steps, {{"training", [&](std::size_t n, const std::function<void(double)>& tick) {
                                double start = 0;
                                std::size_t ticks = 0;
                                time_steps(context, training, n, [&](double s) {
                                  tick(s);
                                  // Time runs from the end of a round's first step to the end of its last.
                                  if (++ticks == 1) start = now();
                                  if (ticks == n) seconds += (now() - start) * n / (n - 1);
                                });
                              }}});
      return seconds;
    };
    bare();
    inside();
    for (std::size_t i = 0; i < rounds; ++i) {
      // ABBA: a machine that slows down or speeds up meanwhile favours neither.
      const double a1 = bare(), b1 = inside(), b2 = inside(), a2 = bare();
      ratios.push_back((b1 + b2) / (a1 + a2));
      bare_seconds.push_back((a1 + a2) / 2 / steps);
    }
  });
  const double ratio = median(ratios), step = median(bare_seconds);
  const double parameters = static_cast<double>(spec.parameters());
  fmt::print("a step: {:.1f} us; floors: {:.3g} MFLOP, {:.3g} MB\n", step * 1e6, 6 * parameters * 32 / 1e6,
             7 * 4 * parameters / 1e6);
  fmt::print("time inside the harness / bare loop: {:.4f} (median of {}, p10 {:.4f}, p90 {:.4f})\n", ratio, rounds,
             quantile(ratios, 0.1), quantile(ratios, 0.9));
  if (limit > 0 && ratio > limit) {
    fmt::print("FAIL: more than {}\n", limit);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  double limit = 0;
  if (argc == 3 && std::string(argv[1]) == "--check") {
    limit = std::atof(argv[2]);
  } else if (argc != 1) {
    fmt::print(stderr, "harness_overhead: the only option is --check RATIO\n");
    return 64;
  }
  try {
    return run(limit);
  } catch (const std::exception& error) {
    fmt::print(stderr, "harness_overhead: {}\n", error.what());
    return 1;
  }
}
