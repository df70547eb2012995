// What the harness costs: training steps inside time_steps() under Google Benchmark, as the timing pass of a chapter
// runs them, and bare ones. One step in the harness, one without it, in turns: whatever else the machine does in these
// milliseconds, it does to both. Medians, one run.
//
// Floors of a step, P parameters, batch B: 6·P·B FLOPs; and with AdamW at least 7 passes over 4·P bytes (weights read
// and written, gradients read, both moments read and written).

#include <fmt/format.h>

#include <vector>

#include "harness/timing.h"
#include "judged.h"
#include "train/image_training.h"

namespace oomlab::bench {
namespace {

void judge() {
  constexpr std::size_t steps = 240;
  const nn::MlpSpec spec = nn::parse_model("mlp:64-1024-1024-10");
  const data::Dataset dataset = data::digits();
  std::vector<double> bare, inside, ratios;
  Config config;
  Ledger ledger;
  with_context(config, kUnlimited, ledger, [&](Context& context) {
    train::ImageTraining training(context, dataset, spec, nn::UpdateRule::adamw, 32);
    run_benchmarks(steps, {{"training", [&](std::size_t n, const std::function<void(double)>& tick) {
                              double last = 0;  // when the latest bare step ended: from there on the harness works
                              time_steps(context, training, {n}, [&](double seconds) {
                                tick(seconds);
                                const double middle = seconds_now();
                                const double in_harness = middle - last;
                                training.step();
                                context.synchronize();
                                const bool first = last == 0;
                                last = seconds_now();
                                if (first) return;
                                inside.push_back(in_harness);
                                bare.push_back(last - middle);
                                ratios.push_back(inside.back() / bare.back());
                              });
                            }}});
  });
  const double step = median(bare), ratio = median(inside) / step;
  const double parameters = static_cast<double>(spec.parameters());
  fmt::print("a step: {:.1f} us; floors: {:.3g} MFLOP, {:.3g} MB\n", step * 1e6, 6 * parameters * 32 / 1e6,
             7 * 4 * parameters / 1e6);
  fmt::print(
      "time of a step inside the harness / without it: {:.4f} (medians of {} steps each; of pairs p10 {:.4f}, p90 "
      "{:.4f})\n",
      ratio, bare.size(), quantile(ratios, 0.1), quantile(ratios, 0.9));
  bench::judged("harness_overhead", "a step inside the harness / without it", ratio, bench::Wanted::at_most, 1.01);
}

}  // namespace
}  // namespace oomlab::bench

int main() { return oomlab::bench::run_judged("bench_harness_overhead", oomlab::bench::judge); }
