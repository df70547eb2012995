#include "harness/timing.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <stdexcept>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/dtype_of.h"
#include "cuda/raii.h"
#include "harness/benchmark_flags.h"

namespace oomlab {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Pace in_steps(const Pace& pace, double seconds_a_step) {
  const auto steps = [&](double seconds) {
    return seconds_a_step > 0 ? static_cast<std::size_t>(std::ceil(seconds / seconds_a_step)) : 0;
  };
  return {std::max(pace.steps, steps(pace.seconds)), std::max(pace.warm_up_steps, steps(pace.warm_up_seconds))};
}

std::vector<double> time_steps(Context& context, Workload& workload, const Pace& pace,
                               const std::function<void(double)>& on_step) {
  Event start, stop;
  std::vector<double> seconds;
  seconds.reserve(std::min(pace.steps, std::size_t(1024)));  // more grow when they come: steps may be "until Ctrl-C"
  // Warm-up: first touches, library start-up, the pool's growth; a GPU's clocks also take a while to rise.
  const double begun = pace.now();
  const auto passed = [&] { return pace.now() - begun; };
  for (std::size_t i = 0; i < pace.warm_up_steps || passed() < pace.warm_up_seconds; ++i) {
    workload.step();
    context.synchronize();
  }
  for (double sum = 0; seconds.size() < pace.steps || sum < pace.seconds; sum += seconds.back()) {
    start.record(context.stream());
    workload.step();
    stop.record(context.stream());
    seconds.push_back(elapsed_ms(start, stop) * 1e-3);
    if (on_step) on_step(seconds.back());
  }
  return seconds;
}

std::vector<double> reference_rates(Context& context) {
  constexpr int kPasses = 5;
  const int n = timing_needs().reference_edge;
  const std::size_t copied = std::max(std::size_t(1) << 20, std::size_t(n) * std::size_t(n));  // floats
  auto a = context.buffer<float>(copied, Category::workspace, "reference work");
  auto b = context.buffer<float>(copied, Category::workspace, "reference work");
  CUDA_CHECK(cudaMemsetAsync(a.data(), 0, a.bytes(), context.stream()));
  constexpr cudaDataType type = data_type_of(DType::fp32);
  const float one = 1, zero = 0;
  Event start, stop;
  std::vector<double> rates;
  for (int pass = 0; pass <= kPasses; ++pass) {  // one to warm up
    start.record(context.stream());
    CUBLAS_CHECK(cublasGemmEx(context.blas(), CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a.data(), type, n, a.data(),
                              type, n, &zero, b.data(), type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    CUDA_CHECK(cudaMemcpyAsync(b.data(), a.data(), a.bytes(), cudaMemcpyDeviceToDevice, context.stream()));
    stop.record(context.stream());
    const double seconds = elapsed_ms(start, stop) * 1e-3;
    if (pass > 0 && seconds > 0) rates.push_back(1 / seconds);
  }
  return rates;
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
  // Only the command line says what is timed: variables such as BENCHMARK_OUT and BENCHMARK_FILTER are other programs'.
  std::vector<std::string> words = {"--benchmark_list_tests=false",
                                    "--benchmark_filter=",
                                    "--benchmark_repetitions=1",
                                    "--benchmark_enable_random_interleaving=false",
                                    "--benchmark_out=",
                                    "--benchmark_out_format=json",
                                    "--benchmark_format=console"};
  words.insert(words.end(), flags.begin(), flags.end());
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
  const std::string filter = benchmark::GetBenchmarkFilter();
  bool any = false;
  for (std::size_t round = 0; round < kTimingRounds; ++round) {
    const std::size_t now = steps_of_round(steps, round);
    if (now == 0) break;
    for (const TimedRun& timed : runs) {
      if (!matches_benchmark_filter(filter, timed.name)) continue;
      any = true;
      const auto benchmark = [&timed, &failure, now](benchmark::State& state) {
        if (failure) return state.SkipWithError("an earlier benchmark failed");
        try {
          std::size_t told = 0;
          timed.run(now, [&](double seconds) {
            // Google Benchmark was promised so many; where more are timed, the table has them all.
            if (told++ < now && state.KeepRunning()) state.SetIterationTime(seconds);
          });
          // Google Benchmark aborts on a loop that was left early, unless it is told that there is nothing to report.
          if (told < now) return state.SkipWithError("ended early");
          (void)state.KeepRunning();  // the call that ends the loop
        } catch (...) {
          failure = std::current_exception();
          state.SkipWithError("failed");
        }
      };
      benchmark::RegisterBenchmark(timed.name.c_str(), benchmark)
          ->UseManualTime()
          ->Iterations(static_cast<benchmark::IterationCount>(now));
    }
  }
  Silent silent;
  if (any) benchmark::RunSpecifiedBenchmarks(&silent, "all");  // those that the filter asks for
  if (failure) std::rethrow_exception(failure);
}

}  // namespace oomlab
