// bench_convolution: one convolution, forward and both gradients, in each of its three ways.
//
//   bench_convolution
//   bench_convolution --benchmark_filter=tiled
//
// A sample is one image. There are two floors: the operations at the speed of a square product of cuBLAS here, and the
// bytes that have to move at the speed of a copy, images, weights and their gradients once, and the column matrix
// written and read once each time that it is made. "of_flops" and "of_bytes" are the shares of the time that they are;
// the larger one says what bounds it. "columns" is the workspace in bytes; "forward_ms", "weight_ms" and "input_ms" are
// the three parts of the time.
//
// A tile's columns are in the cache of the core that wrote them. The product of the weight's gradient shares out
// columns of the matrix, not rows, so each thread reads what the other ones wrote: cheap where cores share a cache, and
// slower than the whole matrix from memory where they do not (a virtual machine may move between the two from minute to
// minute).

#include <benchmark/benchmark.h>

#include <string>

#include "measured.h"
#include "nn/ops/convolution.h"

namespace oomlab::bench {
namespace {

struct Case {
  const char* name;
  std::size_t batch, side, in, out, kernel, stride;
};
// Of resnet:3-16 at 64 x 64 and of resnet18 at 224 x 224: a stem, the first stage, one that strides, the last stage.
constexpr Case kCases[] = {{"stem_7x7/224", 2, 224, 3, 64, 7, 2},
                           {"3x3_16/64", 8, 64, 16, 16, 3, 1},
                           {"3x3_64/56", 4, 56, 64, 64, 3, 1},
                           {"3x3_64_128_stride_2/56", 4, 56, 64, 128, 3, 2},
                           {"3x3_512/7", 8, 7, 512, 512, 3, 1}};

void add_benchmarks(Bench& bench, double flops_per_second, double bytes_per_second) {
  using nn::ConvolutionWay;
  for (const ConvolutionWay way : {ConvolutionWay::im2col, ConvolutionWay::tiled, ConvolutionWay::direct})
    for (const Case& c : kCases) {
      const std::string name = std::string(nn::name_of(way)) + "/" + c.name;
      bench.selection.add(name, [&bench, way, c, flops_per_second, bytes_per_second](benchmark::State& state) {
        const nn::ConvolutionShape shape =
            nn::convolution_shape(c.batch, c.side, c.side, c.in, c.out, c.kernel, c.stride, c.kernel / 2);
        const auto x = bench.values(shape.input_elements(), 1), w = bench.values(shape.weight_elements(), 2),
                   dy = bench.values(shape.output_elements(), 3);
        auto y = bench.values(dy.size(), 4), dx = bench.values(x.size(), 5), dw = bench.values(w.size(), 6);
        double seconds = 0, part[3] = {};
        for (auto _ : state) {
          const double s[] = {
              seconds_of(bench.context,
                         [&] { nn::convolution_forward(bench.context, shape, way, x.data(), w.data(), y.data()); }),
              seconds_of(
                  bench.context,
                  [&] { nn::convolution_backward_weight(bench.context, shape, way, dy.data(), x.data(), dw.data()); }),
              seconds_of(bench.context, [&] {
                nn::convolution_backward_input(bench.context, shape, way, dy.data(), w.data(), dx.data());
              })};
          state.SetIterationTime(s[0] + s[1] + s[2]);
          seconds += s[0] + s[1] + s[2];
          for (std::size_t i = 0; i < 3; ++i) part[i] += s[i];
        }
        const auto done = static_cast<double>(state.iterations());
        const double columns =
            way == ConvolutionWay::direct ? 0 : 4.0 * double(shape.out_pixels()) * double(shape.patch());
        const double bytes = 3 * double(x.bytes() + w.bytes() + y.bytes()) + 3 * 2 * columns;
        state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(c.batch));
        state.counters["of_flops"] = done * 3 * nn::convolution_flops(shape) / flops_per_second / seconds;
        state.counters["of_bytes"] = done * bytes / bytes_per_second / seconds;
        state.counters["forward_ms"] = 1e3 * part[0] / done;
        state.counters["weight_ms"] = 1e3 * part[1] / done;
        state.counters["input_ms"] = 1e3 * part[2] / done;
        state.counters["columns"] = double(nn::convolution_workspace(shape, way, sizeof(float)).columns);
      });
    }
}

}  // namespace
}  // namespace oomlab::bench

int main(int argc, char** argv) {
  return oomlab::bench::run_benchmarks("bench_convolution", argc, argv, [](oomlab::bench::Bench& bench) {
    oomlab::bench::add_benchmarks(bench, bench.product_speed(), bench.copy_speed());
  });
}
