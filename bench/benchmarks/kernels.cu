// bench_kernels: what does it cost that a kernel is portable? Each kernel of common/nn and common/data, as
// the host runtime runs it, against a loop written by hand for the CPU. Both in one run, by turns, so that a
// busy machine disturbs both alike; the ratio is time by hand / time of the kernel (1: portability is free).
//
// The two floors say how far both are from what the machine can do: bytes moved at the speed of a copy of the
// same size or of a multiplication in place, whichever is faster, and operations at the speed of multiply-adds
// in registers. (At these sizes a processor's last-level cache may serve both.) On a GPU there is nothing by hand, and the
// floors are the measure. Times are CUDA events'.
//
//   bench_kernels [--filter TEXT] [--rounds N] [--json FILE] [--judge] [--benchmark_...]
//
// --judge: rows for bench/benchmarks/run, one a ratio. With any --benchmark_ flag the same pairs run under Google
// Benchmark instead. Exit code 2: no device.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda/backend.h"
#include "data/device_dataset.h"
#include "harness/outputs.h"
#include "judged.h"
#include "kernels_by_hand.h"
#include "measured.h"
#include "memory/files.h"
#include "nn/ops/activation.h"
#include "nn/ops/column_sum.h"
#include "nn/ops/loss.h"
#include "nn/ops/values.h"
#include "nn/optimizer/optimizer.h"

namespace oomlab::bench {
namespace {

// On a GPU more than its last-level cache holds: 256 MiB a buffer, where the floor is device memory's.
const std::size_t kRows = std::string_view(backend_name()) == "cuda" ? 16384 : 1024;
constexpr std::size_t kWidth = 4096;
const std::size_t kCount = kRows * kWidth;

struct Pair {
  std::string name;
  double bytes, operations;  // of one call
  std::function<void()> portable, by_hand;
  std::function<void()> prepare;  // outside the time: what works in place starts from the same values each time
};

struct Measured {
  const Pair* pair;
  double portable_us;
  std::optional<double> by_hand_us, ratio;
  double memory_floor_us = 0, compute_floor_us = 0;
  double of_floor() const { return std::max(memory_floor_us, compute_floor_us) / portable_us; }
};

// Everything that the pairs work on: the same buffers for both, so that neither has the luck of a better
// page.
class Fixture {
 public:
  Fixture() : digits_(data::digits()), dataset_(context_, digits_) {
    nn::fill_uniform(context_, x0_.data(), kCount, 2.0f, 1, 1);
    nn::fill_uniform(context_, y0_.data(), kCount, 2.0f, 1, 2);
    nn::fill_uniform(context_, m_.data(), kCount, 0.01f, 1, 3);
    nn::fill(context_, v_.data(), kCount, 0.01f);
    nn::fill_uniform(context_, bias_.data(), kWidth, 1.0f, 1, 4);
    std::vector<int> labels(labels_.size());
    for (std::size_t r = 0; r < labels.size(); ++r) labels[r] = static_cast<int>(r % 10);
    upload(labels_, labels);
    upload(images_, digits_.images);
    upload(image_labels_, digits_.labels);
    make(adamw8_, {nn::UpdateRule::adamw8}, {});
    make(sgd_, {nn::UpdateRule::sgd}, {.sgd = {1e-3f}});
    make(momentum_, {nn::UpdateRule::momentum}, {.sgd = {1e-3f, 0.5f}});
    make_pairs();
  }
  const std::vector<Pair>& pairs() const { return pairs_; }

  // Both read and write kCount floats. What is written in place is there already; what is copied to may have to
  // be read first, which nobody asked for and nobody counts.
  double memory_bytes_a_us() {
    double best = std::numeric_limits<double>::max();
    for (int i = 0; i < 15; ++i) {
      best = std::min(best, microseconds([&] { copy(y_.data(), x_.data(), kCount, context_.stream()); }));
      best = std::min(best, microseconds([&] { scale(y_.data(), kCount, 0.999f, context_.stream()); }));
    }
    return 2.0 * sizeof(float) * kCount / best;
  }
  double operations_a_us() {
    double best = 0;
    for (int i = 0; i < 15; ++i) {
      double done = 0;
      const double us = microseconds([&] { done = arithmetic(100'000, row_loss_.data(), context_.stream()); });
      best = std::max(best, done / us);
    }
    return best;
  }
  /// Of one call. What is over too soon for its beginning and end not to count is done several times in a row.
  double microseconds(const std::function<void()>& f) {
    constexpr double kEnough = 500;
    const double once = microseconds(f, 1);
    return once >= kEnough ? once
                           : microseconds(f, static_cast<int>(std::min(100.0, kEnough / std::max(once, 1.0))) + 1);
  }

 private:
  double microseconds(const std::function<void()>& f, int calls) {
    start_.record(context_.stream());
    for (int i = 0; i < calls; ++i) f();
    stop_.record(context_.stream());
    return 1e3 * static_cast<double>(elapsed_ms(start_, stop_)) / calls;
  }
  void add(std::string name, double bytes, double operations, std::function<void()> portable) {
    const KernelData data{x_.data(),
                          y_.data(),
                          m_.data(),
                          v_.data(),
                          bias_.data(),
                          sums_.data(),
                          row_loss_.data(),
                          labels_.data(),
                          images_.data(),
                          image_labels_.data(),
                          digits_.count,
                          kRows,
                          kWidth};
    auto rival = by_hand(name, data);
    pairs_.push_back({std::move(name), bytes * kCount, operations * kCount, std::move(portable), std::move(rival),
                      // without this, a product in place ends in subnormal numbers, and the clock measures those
                      [this] {
                        copy(x_.data(), x0_.data(), kCount, context_.stream());
                        copy(y_.data(), y0_.data(), kCount, context_.stream());
                      }});
  }

  // Bytes and operations are an element's; a division, a square root and a comparison count as one operation.
  void make_pairs() {
    float *x = x_.data(), *y = y_.data(), *m = m_.data(), *v = v_.data(), *bias = bias_.data();
    int* labels = labels_.data();
    add("bias_relu", 8, 2, [=, this] { nn::bias_activation(context_, x, bias, kRows, kWidth, nn::Activation::relu); });
    add("bias_gelu", 8, 30, [=, this] { nn::bias_activation(context_, x, bias, kRows, kWidth, nn::Activation::gelu); });
    add("relu_backward", 12, 2, [=, this] { nn::activation_backward(context_, x, y, kCount, nn::Activation::relu); });
    add("gelu_backward", 12, 40, [=, this] { nn::activation_backward(context_, x, y, kCount, nn::Activation::gelu); });
    add("column_sum", 4, 1, [=, this] { nn::column_sum(context_, x, sums_.data(), kRows, kWidth); });
    add("softmax_cross_entropy", 8, 24,
        [=, this] { nn::softmax_cross_entropy(context_, y, labels, row_loss_.data(), kRows, kWidth, 1.0f); });
    add("sgd", 12, 2, [=, this] { step_with(sgd_, m); });
    add("momentum", 20, 4, [=, this] { step_with(momentum_, m); });
    add("adamw", 28, 14, [=, this] { nn::adamw_update(context_, x, y, m, v, kCount, {}, 10); });
    // Of each moment's code: 14 lines and the lowest of them, and whether that is a whole number.
    add("adamw8", 16 + 16.0 / 256, 14 + 2 * 50, [=, this] { step_with(adamw8_, y); });
    // batches that fill the buffer: 8×8 as they are, and 8×8 drawn as 16×32
    add("batch_gather", 5, 1, [=, this] { dataset_.batch(context_, 0, kCount / 64, 64, x, labels); });
    add("batch_resize", 4.125, 16, [=, this] { dataset_.batch(context_, 0, kCount / 512, 512, x, labels); });
  }

  // An optimizer of x.
  void make(std::optional<nn::Optimizer<float>>& to, nn::OptimizerForm form, nn::OptimizerSettings settings) {
    to.emplace(context_, std::vector<nn::TensorShape>{{"matrix", "layer 1", kRows, kWidth}},
               std::vector<float*>{x_.data()}, form, settings);
  }
  void step_with(std::optional<nn::Optimizer<float>>& optimizer, const float* gradient) {
    const nn::Optimizer<float>::Update update{0, gradient};
    optimizer->update(context_, {&update, 1});
    optimizer->end_step();
  }
  template <class T, class From>
  void upload(DeviceBuffer<T>& to, const From& from) {
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyHostToDevice, context_.stream()));
    context_.synchronize();
  }

  CudaResource resource_;
  Ledger ledger_;
  Context context_{resource_, ledger_};
  data::Dataset digits_;
  data::DeviceDataset dataset_;
  DeviceBuffer<float> buffer(std::size_t n) {
    auto b = context_.buffer<float>(n, Category::data, "bench");
    nn::fill(context_, b.data(), n, 0.0f);
    return b;
  }
  DeviceBuffer<float> x0_ = buffer(kCount), y0_ = buffer(kCount), x_ = buffer(kCount), y_ = buffer(kCount),
                      m_ = buffer(kCount), v_ = buffer(kCount);
  DeviceBuffer<float> bias_ = buffer(kWidth), sums_ = buffer(kWidth), row_loss_ = buffer(kRows);
  DeviceBuffer<int> labels_ = context_.buffer<int>(kCount / 64, Category::data, "bench labels");
  DeviceBuffer<unsigned char> images_ = context_.buffer<unsigned char>(digits_.images.size(), Category::data, "images"),
                              image_labels_ =
                                  context_.buffer<unsigned char>(digits_.labels.size(), Category::data, "image labels");
  std::optional<nn::Optimizer<float>> adamw8_, sgd_, momentum_;
  Event start_, stop_;
  std::vector<Pair> pairs_;
};

Measured measure(Fixture& fixture, const Pair& pair, int rounds) {
  pair.prepare();
  pair.portable();
  if (pair.by_hand) pair.by_hand();
  std::vector<double> portable, by_hand, ratios;
  for (int r = 0; r < rounds; ++r) {
    const auto time = [&](const std::function<void()>& f) {
      pair.prepare();
      return fixture.microseconds(f);
    };
    if (!pair.by_hand) {
      portable.push_back(time(pair.portable));
      continue;
    }
    double p = 0, h = 0;
    if (r % 2) h = time(pair.by_hand);
    p = time(pair.portable);
    if (r % 2 == 0) h = time(pair.by_hand);
    portable.push_back(p);
    by_hand.push_back(h);
    ratios.push_back(h / p);
  }
  if (!pair.by_hand) return {&pair, median(portable), {}, {}};
  return {&pair, median(portable), median(by_hand), median(ratios)};
}

int usage(const std::string& why) {
  return complain("bench_kernels", why + "; options: --filter TEXT --rounds N --json FILE --judge --benchmark_...", 64);
}

struct Options {
  std::string filter, json;
  int rounds = 41;
  bool judge = false;
};
// What a kernel is to reach of its loop by hand.
constexpr double kLeastRatio = 0.8;

int run(const Options& options) {
  Fixture fixture;
  const double memory = fixture.memory_bytes_a_us(), arithmetic = fixture.operations_a_us();
  fmt::print("memory {:.1f} GB/s, multiply-add {:.1f} GFLOP/s, {} elements a kernel\n\n", memory / 1e3,
             arithmetic / 1e3, kCount);
  fmt::print("{:<22} {:>12} {:>12} {:>7} {:>14} {:>14} {:>10}\n", "kernel", "portable us", "by hand us", "ratio",
             "memory floor", "compute floor", "% of floor");
  std::vector<Measured> all;
  for (const Pair& pair : fixture.pairs()) {
    if (pair.name.find(options.filter) == std::string::npos) continue;
    Measured m = measure(fixture, pair, options.rounds);
    m.memory_floor_us = pair.bytes / memory;
    m.compute_floor_us = pair.operations / arithmetic;
    const auto cell = [](const std::optional<double>& figure, int digits) {
      return figure ? fmt::format("{:.{}f}", *figure, digits) : "-";
    };
    const int digits = m.portable_us < 100 ? 1 : 0;
    fmt::print("{:<22} {:>12.{}f} {:>12} {:>7} {:>14.{}f} {:>14.{}f} {:>10.0f}\n", pair.name, m.portable_us, digits,
               cell(m.by_hand_us, digits), cell(m.ratio, 2), m.memory_floor_us, digits, m.compute_floor_us, digits,
               100 * m.of_floor());
    std::fflush(stdout);
    all.push_back(m);
  }
  if (all.empty()) return usage(fmt::format("no kernel's name contains '{}'", options.filter));
  if (!options.json.empty()) {
    std::string text = fmt::format(
        "{{\n  \"schema\": 1,\n  \"benchmark\": \"kernels\",\n  \"backend\": \"{}\",\n  \"threads\": {},\n"
        "  \"elements\": {},\n  \"memory_gb_per_s\": {:.3f},\n  \"multiply_add_gflop_per_s\": {:.3f},\n  "
        "\"kernels\": [",
        backend_name(), std::thread::hardware_concurrency(), kCount, memory / 1e3, arithmetic / 1e3);
    const auto figure = [](const std::optional<double>& f) { return f ? fmt::format("{:.4f}", *f) : "null"; };
    for (std::size_t i = 0; i < all.size(); ++i)
      text += fmt::format(
          "{}\n    {{\"name\": \"{}\", \"bytes\": {:.0f}, \"operations\": {:.0f}, \"portable_us\": {:.3f}, "
          "\"by_hand_us\": {}, \"ratio\": {}, \"memory_floor_us\": {:.3f}, \"compute_floor_us\": "
          "{:.3f}}}",
          i ? "," : "", all[i].pair->name, all[i].pair->bytes, all[i].pair->operations, all[i].portable_us,
          figure(all[i].by_hand_us), figure(all[i].ratio), all[i].memory_floor_us, all[i].compute_floor_us);
    write_file(options.json, text + "\n  ]\n}\n");
  }
  for (const Measured& m : all)
    if (options.judge && m.ratio)
      judged("kernels", m.pair->name + ", by hand / portable", *m.ratio, Wanted::at_least, kLeastRatio);
  return 0;
}

int run_google_benchmark(int argc, char** argv) {
  initialise_benchmarks(argc, argv);
  Fixture fixture;
  Selection selection;
  for (const Pair& pair : fixture.pairs())
    for (const bool portable : {true, false}) {
      const std::function<void()>& f = portable ? pair.portable : pair.by_hand;
      const std::string name = pair.name + (portable ? "/portable" : "/by_hand");
      if (!f) continue;
      selection.add(
          name,
          [&f, &pair, &fixture](benchmark::State& state) {
            for (auto _ : state) {
              pair.prepare();
              state.SetIterationTime(1e-6 * fixture.microseconds(f));
            }
            state.SetBytesProcessed(static_cast<std::int64_t>(static_cast<double>(state.iterations()) * pair.bytes));
          },
          benchmark::kMicrosecond);
    }
  selection.run();
  return 0;
}

}  // namespace
}  // namespace oomlab::bench

int main(int argc, char** argv) {
  using namespace oomlab::bench;
  oomlab::open_standard_descriptors();
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]).starts_with("--benchmark_"))
      return ending_of("bench_kernels", [&] { return run_google_benchmark(argc, argv); });
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--judge") {
      options.judge = true;
      continue;
    }
    if (name != "--filter" && name != "--rounds" && name != "--json")
      return usage(fmt::format("unknown option '{}'", name));
    if (i + 1 == argc) return usage(fmt::format("{} needs a value", name));
    const std::string_view value = argv[++i];
    if (name == "--filter") options.filter = value;
    if (name == "--json") options.json = value;
    const auto number = [&](auto& to) {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), to);
      return error == std::errc() && end == value.data() + value.size();
    };
    if (name == "--rounds" && (!number(options.rounds) || options.rounds < 1 || options.rounds > 100000))
      return usage(fmt::format("--rounds must be 1 to 100000, not '{}'", value));
  }
  return ending_of("bench_kernels", [&] {
    if (!options.json.empty()) oomlab::check_output_path("--json", options.json);
    return run(options);
  });
}
