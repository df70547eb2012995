// What the harness costs: the same training steps inside time_steps() under Google Benchmark, as the timing pass of a
// chapter runs them, and in a bare loop. Interleaved, medians, one run. --check 1.01 makes a larger ratio,
// three times in a row, an error.
//
// Floors of a step, P parameters, batch B: 6·P·B FLOPs; and with AdamW at least 7 passes over 4·P bytes (weights read
// and written, gradients read, both moments read and written).

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "train/image_training.h"
#include "harness/timing.h"

namespace {

using namespace oomlab;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int run(double limit) {
  constexpr std::size_t steps = 60, rounds = 7;
  const nn::MlpSpec spec = nn::parse_model("mlp:64-1024-1024-10");
  const data::Dataset dataset = data::digits();
  std::vector<double> ratios, bare_seconds, inside_seconds;
  Config config;
  Ledger ledger;
  with_context(config, kUnlimited, ledger, [&](Context& context) {
    train::ImageTraining training(context, dataset, spec, nn::OptimizerKind::adamw, 32);
    // Wall time of each step, from the end of the one before it: medians of these forget what other programs did.
    const auto bare = [&](std::vector<double>& seconds) {
      training.step();
      context.synchronize();
      double last = now();
      for (std::size_t i = 0; i < steps; ++i) {
        training.step();
        context.synchronize();
        const double end = now();
        seconds.push_back(end - last);
        last = end;
      }
    };
    const auto inside = [&](std::vector<double>& seconds) {
      run_benchmarks(steps, {{"training", [&](std::size_t n, const std::function<void(double)>& tick) {
                                double last = 0;
                                time_steps(context, training, n, [&](double s) {
                                  tick(s);
                                  const double end = now();
                                  if (last > 0) seconds.push_back(end - last);
                                  last = end;
                                });
                              }}});
    };
    std::vector<double> unused;
    bare(unused);
    inside(unused);
    for (std::size_t i = 0; i < rounds; ++i) {
      // ABBA: a machine that slows down or speeds up meanwhile favours neither.
      std::vector<double> a, b;
      bare(a), inside(b), inside(b), bare(a);
      ratios.push_back(median(b) / median(a));
      bare_seconds.insert(bare_seconds.end(), a.begin(), a.end());
      inside_seconds.insert(inside_seconds.end(), b.begin(), b.end());
    }
  });
  const double step = median(bare_seconds), ratio = median(inside_seconds) / step;
  const double parameters = static_cast<double>(spec.parameters());
  fmt::print("a step: {:.1f} us; floors: {:.3g} MFLOP, {:.3g} MB\n", step * 1e6, 6 * parameters * 32 / 1e6,
             7 * 4 * parameters / 1e6);
  fmt::print(
      "time inside the harness / bare loop: {:.4f} (medians of all steps; of {} rounds p10 {:.4f}, p90 {:.4f})\n",
      ratio, rounds, quantile(ratios, 0.1), quantile(ratios, 0.9));
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
    // What other programs do can cost more than the limit, but not three times in a row; what the harness costs, it
    // costs every time.
    int failed = 1;
    for (int attempt = 0; attempt < 3 && failed; ++attempt) failed = run(limit);
    return failed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "harness_overhead: {}\n", error.what());
    return 1;
  }
}
