#include "harness/timing.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <stdexcept>

#include "cuda/raii.h"

namespace oomlab {

std::vector<double> time_steps(Context& context, Workload& workload, std::size_t steps,
                               const std::function<void(double)>& on_step) {
  Event start, stop;
  std::vector<double> seconds;
  seconds.reserve(std::min(steps, std::size_t(1024)));  // more grow when they come: steps may be "until Ctrl-C"
  workload.step();                                      // warm-up: first touches, library start-up, the pool's growth
  for (std::size_t i = 0; i < steps; ++i) {
    start.record(context.stream());
    workload.step();
    stop.record(context.stream());
    seconds.push_back(elapsed_ms(start, stop) * 1e-3);
    if (on_step) on_step(seconds.back());
  }
  return seconds;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) throw std::invalid_argument("quantile of no values");
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

namespace {

// The harness prints its own table.
class Silent : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

// Google Benchmark keeps its list of benchmarks in a global; nothing of ours may stay in it.
struct Registered {
  Registered() { benchmark::ClearRegisteredBenchmarks(); }
  ~Registered() { benchmark::ClearRegisteredBenchmarks(); }
};

}  // namespace

void set_benchmark_flags(char* program, const std::vector<std::string>& flags) {
  std::vector<std::string> words = flags;
  std::vector<char*> argv = {program};
  for (std::string& word : words) argv.push_back(word.data());
  int argc = static_cast<int>(argv.size());
  benchmark::Initialize(&argc, argv.data());
  if (argc > 1) throw UsageError("'" + std::string(argv[1]) + "' is not a flag of Google Benchmark");
}

void run_benchmarks(std::size_t steps, const std::vector<TimedRun>& runs) {
  // Google Benchmark does not expect exceptions to pass through it, so the first one waits here.
  std::exception_ptr failure;
  const Registered registered;
  for (const TimedRun& timed : runs) {
    const auto benchmark = [&timed, &failure, steps](benchmark::State& state) {
      if (failure) return state.SkipWithError("an earlier benchmark failed");
      try {
        std::size_t told = 0;
        timed.run([&](double seconds) {
          if (state.KeepRunning()) state.SetIterationTime(seconds);
          ++told;
        });
        // Google Benchmark aborts on a loop that was left early, unless it is told that there is nothing to report.
        if (told < steps) return state.SkipWithError("ended early");
        (void)state.KeepRunning();  // the call that ends the loop
      } catch (...) {
        failure = std::current_exception();
        state.SkipWithError("failed");
      }
    };
    benchmark::RegisterBenchmark(timed.name.c_str(), benchmark)
        ->UseManualTime()
        ->Iterations(static_cast<benchmark::IterationCount>(steps));
  }
  Silent silent;
  benchmark::RunSpecifiedBenchmarks(&silent);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace oomlab
