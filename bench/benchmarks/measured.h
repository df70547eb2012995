#pragma once
// What bench_attention, bench_convolution and bench_features have in common: a context, times by CUDA events, and the
// speeds that floors are made of.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "ending.h"
#include "harness/benchmark_flags.h"
#include "harness/chapter.h"
#include "memory/text.h"
#include "nn/ops/matmul.h"
#include "nn/ops/values.h"

namespace oomlab::bench {

/// The seconds of what `work` queues.
template <class Work>
double seconds_of(Context& context, Work work) {
  Event start, stop;
  start.record(context.stream());
  work();
  stop.record(context.stream());
  return 1e-3 * static_cast<double>(elapsed_ms(start, stop));
}

/// Hands Google Benchmark its flags. Throws UsageError for what it does not know, or would not take.
inline void initialise_benchmarks(int& argc, char** argv) {
  for (int i = 1; i < argc; ++i) check_benchmark_flag(argv[i]);
  benchmark::Initialize(&argc, argv);
  if (argc > 1) throw UsageError(fmt::format("'{}' is not a flag of Google Benchmark", argv[1]));
}

/// What --benchmark_filter asks for. Only that is registered: Google Benchmark's own matcher may take for ever.
class Selection {
 public:
  /// Registers a benchmark that sets its own times, where it is asked for.
  template <class Work>
  void add(const std::string& name, Work work, benchmark::TimeUnit unit = benchmark::kMillisecond) {
    if (!matches_benchmark_filter(benchmark::GetBenchmarkFilter(), name + "/manual_time")) return;
    ++count_;
    benchmark::RegisterBenchmark(name.c_str(), std::move(work))->UseManualTime()->Unit(unit);
  }
  /// Runs what was registered. Throws UsageError when that is nothing.
  void run() const {
    if (count_ == 0)
      throw UsageError(fmt::format("--benchmark_filter '{}' matches no benchmark", benchmark::GetBenchmarkFilter()));
    benchmark::RunSpecifiedBenchmarks("all");
    benchmark::Shutdown();
  }

 private:
  std::size_t count_ = 0;
};

struct Bench {
  CudaResource resource;
  Ledger ledger;
  Context context{resource, ledger};
  Selection selection;

  DeviceBuffer<float> values(std::size_t count, std::uint64_t stream) {
    auto buffer = context.buffer<float>(count, Category::data, "bench");
    nn::fill_uniform(context, buffer.data(), count, 1.0f, 1, stream);
    return buffer;
  }

  /// Operations a second of a square product: the best of ten.
  double product_speed() {
    constexpr std::size_t kEdge = 1024;
    const auto a = values(kEdge * kEdge, 1), b = values(kEdge * kEdge, 2);
    auto c = values(kEdge * kEdge, 3);
    double best = 0;
    for (int i = 0; i < 10; ++i) {
      const double seconds = seconds_of(context, [&] {
        nn::gemm(context, false, true, kEdge, kEdge, kEdge, 1.0f, a.data(), b.data(), 0.0f, c.data());
      });
      best = std::max(best, 2.0 * kEdge * kEdge * kEdge / seconds);
    }
    return best;
  }

  /// Bytes a second that a copy on the device reads and writes: the best of ten.
  double copy_speed() {
    constexpr std::size_t kCount = std::size_t(16) << 20;
    const auto from = values(kCount, 1);
    auto to = values(kCount, 2);
    double best = 0;
    for (int i = 0; i < 10; ++i) {
      const double seconds = seconds_of(context, [&] {
        CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDeviceToDevice, context.stream()));
      });
      best = std::max(best, 2.0 * double(to.bytes()) / seconds);
    }
    return best;
  }
};

/// The main() of a bench: `add` registers what its selection has.
template <class Add>
int run_benchmarks(const char* program, int argc, char** argv, Add add) {
  open_standard_descriptors();
  return ending_of(program, [&] {
    initialise_benchmarks(argc, argv);
    Bench bench;
    add(bench);
    bench.selection.run();
    return 0;
  });
}

}  // namespace oomlab::bench
