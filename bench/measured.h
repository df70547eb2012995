#pragma once
// What bench_attention, bench_convolution and bench_features have in common: a context, times by CUDA events, and the
// speeds that floors are made of.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>

#include "nn/ops.h"

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

struct Bench {
  CudaResource resource;
  Ledger ledger;
  Context context{resource, ledger};

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

/// The main() of a bench: `add` registers what is to be measured. Exit codes: 64 for an unknown flag, 2 for an error.
template <class Add>
int run_benchmarks(const char* program, int argc, char** argv, Add add) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  try {
    Bench bench;
    add(bench);
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 2;
  }
  benchmark::Shutdown();
  return 0;
}

}  // namespace oomlab::bench
