// What recomputation costs, as ratios of processor time within one run, on a model whose matrix products dominate. The
// processor's time, because the clock on the wall also counts what other programs do meanwhile. Not on a GPU: there
// norms and GELU cost memory traffic and launches, several percent of this step, which is short.

#include <ctime>
#include <random>
#include <string>

#include "../../../bench/benchmarks/judged.h"
#include "checkpointing.h"
#include "cuda/backend.h"
#include "harness/chapter.h"
#include "plan/flops.h"

namespace oomlab::checkpointing {
namespace {

void judge() {
  if (std::string(backend_name()) != "host") throw std::runtime_error("it measures a processor's time");
  const nn::TransformerSpec spec = nn::parse_transformer("gpt:3-8-512");
  const std::size_t sequences = 2, seq = 128, layers = spec.layers;
  AsyncResource resource;  // as the chapters have it: memory that was used before is at hand
  Ledger ledger;
  Context context(resource, ledger);
  nn::Transformer<float> model(context, spec, 1);
  std::mt19937 random(1);
  std::vector<int> tokens(sequences * seq);
  for (int& t : tokens) t = int(random() % spec.vocabulary);

  const Schedule schedules[] = {keep_everything(layers), recompute_segments(layers, 1),
                                keep_selected(layers, {.norms = false, .gelu = false})};
  const auto flops = [&](const Schedule& s) { return double(nn::step_flops(spec, sequences, seq, s)); };
  std::vector<std::function<double()>> ways;
  for (const Schedule& schedule : schedules)
    ways.push_back([&] {
      nn::TokenBatch batch = nn::make_token_batch(context, tokens, tokens, sequences, seq);
      context.synchronize();
      const std::clock_t start = std::clock();
      checkpointed_step(context, model, std::move(batch), schedule);
      context.synchronize();
      return double(std::clock() - start) / CLOCKS_PER_SEC;
    });
  const auto seconds = bench::in_turns(12, ways);
  const double every = bench::ratio_in_pairs(seconds[1], seconds[0]);
  const double ideal = flops(schedules[1]) / flops(schedules[0]);
  fmt::print("step {:.1f} ms of processor time; every layer recomputed {:.3f} x (operations: {:.3f} x)\n",
             1e3 * bench::median(seconds[0]), every, ideal);
  bench::judged("04_checkpointing", "every layer recomputed / kept, over the same ratio of operations", every / ideal,
                bench::Wanted::at_most, 1.05);
  bench::judged("04_checkpointing", "norms and GELU recomputed / kept", bench::ratio_in_pairs(seconds[2], seconds[0]),
                bench::Wanted::at_most, 1.02);
}

}  // namespace
}  // namespace oomlab::checkpointing

int main() { return oomlab::bench::run_judged("04_checkpointing_bench", oomlab::checkpointing::judge); }
