// bench_attention: attention alone, forward and backward, in each form that common/nn has, over the length of a
// sequence.
//
//   bench_attention                              all forms, S 512, 1,024, 2,048, 8 heads of 64 values, causal, FP32
//   bench_attention --benchmark_filter=tiled/512
//
// A sample is one sequence. The floor is what the products of the seen half alone would take, two forward and five
// backward (scores once more), at the speed of a square product of cuBLAS here; what is read and written once, Q, K, V,
// the output and their gradients, takes far less at these lengths. "of_floor" is the share of the time that this is.
// Times are CUDA events'. bench/peers/pytorch_peer.py --table puts PyTorch beside it.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>

#include "measured.h"
#include "nn/ops/attention.h"

namespace oomlab::bench {
namespace {

constexpr std::size_t kHeads = 8, kDepth = 64, kWidth = kHeads * kDepth;

// Forward and backward once: of the textbook's form the probabilities are kept in between.
double once(Bench& bench, nn::AttentionForm form, const nn::AttentionShape& shape, DeviceBuffer<float> qkv,
            DeviceBuffer<float> d) {
  Context& context = bench.context;
  const std::size_t rows = shape.sequences * shape.seq;
  return seconds_of(context, [&] {
    auto attended = context.buffer<float>(rows * shape.width, Category::activations, "attended");
    if (form == nn::AttentionForm::textbook) {
      auto p = nn::attention_probabilities<float>(context, shape, qkv.data());
      nn::attention_forward<float>(context, shape, qkv.data(), p.data(), attended.data());
      (void)nn::attention_backward<float>(context, shape, qkv, p, std::move(d));
    } else if (form == nn::AttentionForm::tiled) {
      nn::attention_forward_tiled<float>(context, shape, qkv.data(), attended.data());
      (void)nn::attention_backward_tiled<float>(context, shape, qkv, std::move(d));
    } else {
      auto lse = context.buffer<float>(rows * shape.heads, Category::activations, "attention log-sum-exp");
      auto dots = context.buffer<float>(rows * shape.heads, Category::activations, "attention row dots");
      nn::attention_forward_fused<float>(context, shape, qkv.data(), attended.data(), lse.data());
      nn::attention_row_dots<float>(context, shape, attended.data(), d.data(), dots.data());
      (void)nn::attention_backward_fused<float>(context, shape, qkv, lse, dots, std::move(d));
    }
  });
}

void add_benchmarks(Bench& bench, double product_speed) {
  for (const nn::AttentionForm form : {nn::AttentionForm::textbook, nn::AttentionForm::tiled, nn::AttentionForm::fused})
    for (const std::size_t seq : {512u, 1024u, 2048u}) {
      const std::string name = std::string(name_of(form)) + "/" + std::to_string(seq);
      bench.selection.add(name, [&bench, form, seq, product_speed](benchmark::State& state) {
        const nn::AttentionShape shape{1, seq, kHeads, kWidth, true};
        double seconds = 0;
        for (auto _ : state) {
          auto qkv = bench.values(3 * seq * kWidth, 1), d = bench.values(seq * kWidth, 2);
          const double s = once(bench, form, shape, std::move(qkv), std::move(d));
          state.SetIterationTime(s);
          seconds += s;
        }
        const auto done = static_cast<double>(state.iterations());
        const double seen_half = double(seq) * double(seq) / 2;
        state.SetItemsProcessed(state.iterations());
        state.counters["of_floor"] = done * 7 * 2 * seen_half * kWidth / product_speed / seconds;
      });
    }
}

}  // namespace
}  // namespace oomlab::bench

int main(int argc, char** argv) {
  return oomlab::bench::run_benchmarks("bench_attention", argc, argv, [](oomlab::bench::Bench& bench) {
    oomlab::bench::add_benchmarks(bench, bench.product_speed());
  });
}
