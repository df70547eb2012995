#include "plan/schedule.h"

#include <algorithm>
#include <cmath>

#include "plan/flops.h"

namespace oomlab::nn {

Schedule keep_everything(std::uint64_t layers) { return {{layers, false, {}}}; }

Schedule keep_selected(std::uint64_t layers, Keep keep) { return {{layers, false, keep}}; }

Schedule recompute_segments(std::uint64_t layers, std::uint64_t length) {
  Schedule schedule;
  for (std::uint64_t l = 0; l < layers; l += length) schedule.push_back({std::min(length, layers - l), true, {}});
  return schedule;
}

std::uint64_t root_of(std::uint64_t layers) {
  return static_cast<std::uint64_t>(std::ceil(std::sqrt(static_cast<double>(layers))));
}

ByCategory predict_schedule(const TransformerSpec& spec, std::uint64_t element_bytes, std::uint64_t sequences,
                            std::uint64_t seq, const Schedule& schedule, const ByCategory& resident,
                            const StepForm& form) {
  const StepLevers levers{
      .element_bytes = element_bytes, .sequences = sequences, .seq = seq, .form = form, .schedule = schedule};
  return simulate_step(spec, levers, resident).at_peak;
}

double recompute_cost(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq, const Segment& segment,
                      const StepForm& form) {
  const double elements = double(segment.layers) * double(sequences) * double(seq) * double(spec.width);
  const double norms = (spec.bert() ? 1 : 2) * 8 * elements;
  const double gelu = 30 * 4 * elements;
  const auto products = double(recompute_flops(layer_flops(spec, sequences, seq, form), segment));
  if (segment.recompute) return products + norms + gelu + (spec.bert() ? norms : 0);
  return products + (segment.keep.norms ? 0 : norms) + (segment.keep.gelu ? 0 : gelu);
}

double recompute_cost(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq, const Schedule& schedule,
                      const StepForm& form) {
  double sum = 0;
  for (const Segment& segment : schedule) sum += recompute_cost(spec, sequences, seq, segment, form);
  return sum;
}

}  // namespace oomlab::nn
