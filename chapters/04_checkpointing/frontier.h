#pragma once
// Memory against time, and against depth, as pictures in text.

#include "solver.h"
#include "train/precision.h"

namespace oomlab::checkpointing {

using namespace train;

// Memory against time: what the solver finds between the least and the most that a step can use. Operations are shares
// of the step's matrix products.
inline void frontier(Report& report, const nn::TransformerSpec& spec, Precision precision) {
  const Config& c = report.config();
  const std::size_t bytes = element_bytes(precision);
  const ByCategory resident = resident_with(spec, precision);
  const auto peak = [&](const Schedule& s) {
    return predict_schedule(spec, bytes, c.batch, c.seq, s, resident).total();
  };
  const StepCosts costs(spec, bytes, c.batch, c.seq);
  const Schedule everything = keep_everything(spec.layers);
  const std::size_t most = peak(everything);
  std::size_t least = most;
  for (std::size_t length = 1; length <= spec.layers; ++length)
    least = std::min(least, peak(recompute_segments(spec.layers, length)));
  report.line("memory against time, by the solver (peak, operations computed again, schedule):");
  constexpr std::size_t kPoints = 8;
  for (std::size_t i = 0; i <= kPoints; ++i) {
    const std::size_t budget = least + (most - least) * i / kPoints;
    const auto schedule = solve_schedule(spec, bytes, c.batch, c.seq, budget, resident);
    if (!schedule) continue;
    double again = 0;
    for (const Segment& segment : *schedule) again += costs.again(segment);
    const double more = 100 * again / double(nn::step_flops(spec, c.batch, c.seq));
    const std::size_t found = peak(*schedule);
    report.check(found <= budget, "the solver exceeded its budget");
    report.line(fmt::format("  {:>11}  {:>5.1f} % |{:<34}| {}", format_bytes(found), more,
                            std::string(std::size_t(more + 0.5), '#'), describe(*schedule)));
    report.figure(fmt::format("frontier_{}_peak_bytes", i), double(found));
    report.figure(fmt::format("frontier_{}_again_percent", i), more);
  }
  report.line("");
}

// Activation bytes at the peak of a model `layers` deep, without its head: how they grow with depth.
inline double activations_of(std::size_t layers, const Schedule& schedule) {
  nn::TransformerSpec spec = nn::parse_transformer("bytes-gpt");
  spec.layers = layers;
  return double(predict_schedule(spec, 4, 4, 128, schedule, {})[Category::activations]);
}

// Peak bytes of bert-large at batch 8 of 512 tokens.
inline double bert_large(Precision precision, const Schedule& schedule) {
  const nn::TransformerSpec spec = nn::parse_transformer("bert-large");
  return double(
      predict_schedule(spec, element_bytes(precision), 8, 512, schedule, resident_with(spec, precision)).total());
}

}  // namespace oomlab::checkpointing
