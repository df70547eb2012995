#pragma once
// Memory against time, as a table.

#include "checkpointing.h"
#include "plan/flops.h"
#include "plan/host_state.h"
#include "train/precision.h"

namespace oomlab::checkpointing {

using namespace train;

/// What is allocated all the time, the cuBLAS workspace included: a schedule for a budget has the rest.
inline ByCategory with_workspace(ByCategory resident, const Config& config) {
  resident[Category::workspace] = checked_sum(resident[Category::workspace], round_to_granule(config.workspace));
  return resident;
}

/// A step with a schedule; `on_host`: the inputs that it keeps wait in host memory.
inline nn::StepLevers step_of(std::size_t element_bytes, std::size_t sequences, std::size_t seq,
                              const Schedule& schedule, const nn::StepForm& form, bool on_host = false) {
  return {.element_bytes = element_bytes,
          .sequences = sequences,
          .seq = seq,
          .form = form,
          .schedule = schedule,
          .checkpoints_on_host = on_host};
}

// What the solver finds between the least and the most that a step can use, beside what is `always` allocated.
// Operations are shares of the step's matrix products.
inline void frontier(Report& report, const nn::TransformerSpec& spec, Precision precision, const nn::StepForm& form,
                     const ByCategory& always) {
  const Config& c = report.config();
  const std::size_t seq = c.options[train::kSeq], bytes = element_bytes(precision);
  const auto peak = [&](const Schedule& s) {
    return predict_schedule(spec, bytes, c.batch, seq, s, always, form).total();
  };
  const Schedule everything = keep_everything(spec.layers);
  const std::size_t most = peak(everything);
  std::size_t least = most;
  for (std::size_t length = 1; length <= spec.layers; ++length)
    least = std::min(least, peak(recompute_segments(spec.layers, length)));
  Table table{"frontier",
              "memory against time, by the solver",
              {{"peak", Unit::bytes}, {"recomputed", Unit::percent}, {"schedule"}}};
  constexpr std::size_t kPoints = 8;
  for (std::size_t i = 0; i <= kPoints; ++i) {
    const std::size_t budget = least + (most - least) * i / kPoints;
    const auto schedule = solve_schedule(spec, bytes, c.batch, seq, budget, always, form);
    if (!schedule) continue;
    const double more = 100 * recompute_cost(spec, c.batch, seq, *schedule, form) /
                        double(nn::step_flops(spec, c.batch, seq, {}, form));
    const std::size_t found = peak(*schedule);
    report.check(found <= budget, "the solver exceeded its budget");
    table.rows.push_back({found, more, describe(*schedule)});
  }
  report.table(table);
}

}  // namespace oomlab::checkpointing
