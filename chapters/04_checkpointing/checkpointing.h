#pragma once
// The mitigation: do not keep what can be computed again (Chen et al., "Training deep nets with sublinear memory cost",
// 2016), and only what is cheap to compute (Korthikanti et al., "Reducing activation recomputation", 2022).
//
// A schedule (plan/step_form.h) cuts the layers into segments. A segment is either plain: its layers keep what its Keep
// says; or it is recomputed: only its input is kept, and before its backward pass its forward pass runs again. A
// recomputed segment of one layer is "checkpoint every layer".

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "nn/scheduled_step.h"
#include "nn/transformer.h"
#include "plan/flops.h"
#include "plan/step_walk.h"

namespace oomlab::checkpointing {

using nn::Schedule;
using nn::Segment;

inline Schedule keep_everything(std::size_t layers) { return {{layers, false, {}}}; }
inline Schedule keep_selected(std::size_t layers, nn::Keep keep) { return {{layers, false, keep}}; }
/// Segments of at most `length` layers, each recomputed from its input.
inline Schedule recompute_segments(std::size_t layers, std::size_t length) {
  Schedule schedule;
  for (std::size_t l = 0; l < layers; l += length) schedule.push_back({std::min(length, layers - l), true, {}});
  return schedule;
}
/// √layers, rounded up: as many segments as each has layers.
inline std::size_t root_of(std::size_t layers) {
  return static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(layers))));
}

/// Forward and backward as Transformer::forward_backward(), to the same bits, with this schedule. The loop over layers
/// is nn/scheduled_step.h's.
template <class T>
void checkpointed_step(Context& context, nn::Transformer<T>& model, nn::TokenBatch batch, const Schedule& schedule,
                       const float* scale_on_device = nullptr, nn::StepOptions options = {}) {
  nn::ScheduledPass<T> pass(context, model, batch, schedule);
  DeviceBuffer<T> residual = model.head(context, batch, pass.output(), options, scale_on_device);
  const Phase phase(context.ledger(), "backward");
  pass.backward(context, model, batch, std::move(residual), options.accumulate);
}

// --------------------------------------------------------------------------------------------------------- closed form

/// Peak of checkpointed_step() with this schedule, of a model in this form, by category, above `resident`.
inline ByCategory predict_schedule(const nn::TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences,
                                   std::size_t seq, const Schedule& schedule, const ByCategory& resident,
                                   const nn::StepForm& form = {}) {
  const nn::StepLevers levers{
      .element_bytes = element_bytes, .sequences = sequences, .seq = seq, .form = form, .schedule = schedule};
  return nn::walk_step(spec, levers, resident).at_peak;
}

/// What a segment recomputes, in operations: matrix products, and 30 for a GELU and 8 for a normalised element. It is
/// no time. These two are bound by memory: an A100 reads and writes a value of 16 bits in the time of some 600
/// operations of its tensor cores. So a schedule that recomputes the fewest operations need not be the fastest.
inline double recompute_cost(const nn::TransformerSpec& spec, std::size_t sequences, std::size_t seq, const Segment& s,
                             const nn::StepForm& form = {}) {
  const double elements = double(s.layers) * double(sequences) * double(seq) * double(spec.width);
  const double norms = (spec.bert() ? 1 : 2) * 8 * elements, gelu = 30 * 4 * elements;
  const auto products = double(nn::recompute_flops(nn::layer_flops(spec, sequences, seq, form), s));
  if (s.recompute) return products + norms + gelu + (spec.bert() ? norms : 0);
  return products + (s.keep.norms ? 0 : norms) + (s.keep.gelu ? 0 : gelu);
}
inline double recompute_cost(const nn::TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                             const Schedule& schedule, const nn::StepForm& form = {}) {
  double sum = 0;
  for (const Segment& segment : schedule) sum += recompute_cost(spec, sequences, seq, segment, form);
  return sum;
}

/// "4 kept, 2 without norms+GELU, 6 recomputed in segments of 3": how many layers are treated how.
inline std::string describe(const Schedule& schedule) {
  std::map<std::string, std::size_t> layers;
  for (const Segment& s : schedule) {
    std::string how;
    if (s.recompute) {
      how = s.layers == 1 ? "recomputed" : fmt::format("recomputed in segments of {}", s.layers);
    } else {
      if (!s.keep.norms) how += "norms+";
      if (!s.keep.gelu) how += "GELU+";
      if (!s.keep.probabilities) how += "probabilities+";
      if (!s.keep.middle) how += "middle+";
      how = how.empty() ? "kept" : "without " + how.substr(0, how.size() - 1);
    }
    layers[how] += s.layers;
  }
  std::string text;
  for (const char* first : {"kept", "without", "recomputed"})
    for (const auto& [how, count] : layers)
      if (how.starts_with(first)) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, how);
  return text;
}

}  // namespace oomlab::checkpointing
