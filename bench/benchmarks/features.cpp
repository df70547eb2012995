// bench_features: what stands between the convolutions of lighter networks, and depthwise convolutions.
//
//   bench_features
//   bench_features --benchmark_filter=upsample
//
// All of these move memory and compute little. The floor is the bytes that have to move at the speed of a copy: what an
// operator reads and writes, each once, or as often as it has to walk it. "of_bytes" is the share of the time that they
// are. Depthwise convolutions also have their operations at the speed of a square product of cuBLAS here, "of_flops".

#include <benchmark/benchmark.h>

#include <functional>
#include <string>

#include "measured.h"
#include "nn/ops/activation.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/channels.h"
#include "nn/ops/convolution.h"
#include "nn/ops/upsample.h"

namespace oomlab::bench {
namespace {

// A batch of a MobileNet's values behind its first blocks.
constexpr std::size_t kBatch = 8, kSide = 56, kChannels = 64, kPixels = kSide * kSide, kRows = kBatch * kPixels,
                      kCount = kRows * kChannels;

struct Speeds {
  double flops, bytes;  // a second
};

// What the operators work on.
struct Values {
  explicit Values(Bench& bench)
      : context(bench.context),
        x(bench.values(kCount, 1)),
        y(bench.values(kCount, 2)),
        dy(bench.values(kCount, 3)),
        large(bench.values(4 * kCount, 4)),
        gamma(bench.values(kChannels, 5)),
        beta(bench.values(kChannels, 6)),
        mean(bench.values(kChannels, 7)),
        inv_std(bench.values(kChannels, 8)),
        factors(bench.values(kBatch * kChannels, 9)),
        small(bench.values(kBatch * kChannels, 10)),
        weight(bench.values(9 * kChannels, 11)) {}
  Context& context;
  DeviceBuffer<float> x, y, dy, large, gamma, beta, mean, inv_std, factors, small, weight;
};

void add(Bench& bench, const std::string& name, const Speeds& speeds, double bytes, double flops,
         std::function<void(Values&)> work) {
  bench.selection.add(name, [&bench, speeds, bytes, flops, work](benchmark::State& state) {
    Values values(bench);
    double seconds = 0;
    for (auto _ : state) {
      const double s = seconds_of(bench.context, [&] { work(values); });
      state.SetIterationTime(s);
      seconds += s;
    }
    const auto done = static_cast<double>(state.iterations());
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
    state.counters["of_bytes"] = done * bytes / speeds.bytes / seconds;
    if (flops > 0) state.counters["of_flops"] = done * flops / speeds.flops / seconds;
  });
}

void add_benchmarks(Bench& bench, const Speeds& speeds) {
  constexpr double image = sizeof(float) * double(kCount);
  for (const auto& [name, activation] :
       {std::pair("relu", nn::Activation::relu), std::pair("hard_swish", nn::Activation::hard_swish)}) {
    add(bench, std::string("norm_and_") + name, speeds, 2 * image, 0, [activation](Values& v) {
      nn::batch_norm_again(v.context, v.x.data(), v.gamma.data(), v.beta.data(), v.y.data(), v.mean.data(),
                           v.inv_std.data(), kRows, kChannels, activation);
    });
    add(bench, std::string("norm_and_") + name + "/backward", speeds, 3 * image, 0, [activation](Values& v) {
      nn::norm_activation_backward(v.context, v.dy.data(), v.x.data(), v.gamma.data(), v.beta.data(), v.mean.data(),
                                   v.inv_std.data(), kRows, kChannels, activation);
    });
  }
  add(bench, "concatenate", speeds, 4 * image, 0, [](Values& v) {
    nn::concatenate_channels(v.context, v.x.data(), v.y.data(), v.large.data(), kRows, kChannels, kChannels);
  });
  add(bench, "split", speeds, 4 * image, 0, [](Values& v) {
    nn::split_channels(v.context, v.large.data(), v.x.data(), v.y.data(), kRows, kChannels, kChannels);
  });
  add(bench, "upsample", speeds, 5 * image, 0, [](Values& v) {
    nn::upsample_forward(v.context, v.x.data(), v.large.data(), kBatch, kSide, kSide, kChannels, 2);
  });
  add(bench, "upsample/backward", speeds, 5 * image, 0, [](Values& v) {
    nn::upsample_backward(v.context, v.large.data(), v.y.data(), kBatch, kSide, kSide, kChannels, 2);
  });
  add(bench, "scale_channels", speeds, 2 * image, 0, [](Values& v) {
    nn::scale_channels(v.context, v.x.data(), v.factors.data(), v.y.data(), kBatch, kPixels, kChannels);
  });
  add(bench, "scale_channels/backward_factors", speeds, 2 * image, 0, [](Values& v) {
    nn::scale_channels_backward_factors(v.context, v.dy.data(), v.x.data(), v.small.data(), kBatch, kPixels, kChannels);
  });
  add(bench, "scale_channels/backward_input", speeds, 2 * image, 0, [](Values& v) {
    nn::scale_channels_backward_input(v.context, v.dy.data(), v.factors.data(), v.small.data(), 1.0f / kPixels, kBatch,
                                      kPixels, kChannels);
  });
  static const nn::ConvolutionShape s =
      nn::convolution_shape(kBatch, kSide, kSide, kChannels, kChannels, 3, 1, 1, /*groups=*/kChannels);
  const double flops = nn::convolution_flops(s);
  add(bench, "depthwise", speeds, 2 * image, flops,
      [](Values& v) { nn::depthwise_forward(v.context, s, v.x.data(), v.weight.data(), v.y.data()); });
  add(bench, "depthwise/backward_input", speeds, 2 * image, flops,
      [](Values& v) { nn::depthwise_backward_input(v.context, s, v.dy.data(), v.weight.data(), v.y.data()); });
  add(bench, "depthwise/backward_weight", speeds, 2 * image, flops,
      [](Values& v) { nn::depthwise_backward_weight(v.context, s, v.dy.data(), v.x.data(), v.weight.data()); });
}

}  // namespace
}  // namespace oomlab::bench

int main(int argc, char** argv) {
  return oomlab::bench::run_benchmarks("bench_features", argc, argv, [](oomlab::bench::Bench& bench) {
    oomlab::bench::add_benchmarks(bench, {bench.product_speed(), bench.copy_speed()});
  });
}
