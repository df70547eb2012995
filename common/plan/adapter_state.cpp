#include "plan/adapter_state.h"

#include <algorithm>

#include "plan/bytes.h"
#include "plan/quantised/decoder.h"

namespace oomlab::nn {

namespace {

// Gradients and the optimizer's state of a tensor.
void add_training(const TensorShape& shape, const FineTuning& tuning, ByCategory& to) {
  const std::uint64_t gradient = round_to_granule(checked_product(shape.count(), element_bytes(tuning.dtype)));
  to[Category::gradients] = checked_sum(to[Category::gradients], gradient);
  to[Category::optimizer] = checked_sum(to[Category::optimizer], state_bytes(shape, tuning.optimizer));
}

}  // namespace

std::uint64_t decoded_part_bytes(const TransformerSpec& spec, const quantised::Format& base, std::uint64_t parts,
                                 std::uint64_t element_bytes) {
  if (base.scheme == quantised::Scheme::as_is) return 0;
  const auto eighth = [](std::uint64_t n) { return (n + kDecodedParts - 1) / kDecodedParts; };
  std::uint64_t elements = 0;
  for (const TensorShape& shape : tensors_of(with_layers(spec, 1), {.parts = parts})) {
    if (!quantised::is_quantised(shape)) continue;
    elements = std::max({elements, checked_product(eighth(shape.rows), shape.columns),
                         checked_product(shape.rows, eighth(shape.columns))});
  }
  return round_to_granule(checked_product(elements, element_bytes));
}
std::uint64_t decoded_part_bytes(const TransformerSpec& spec, const FineTuning& tuning) {
  if (tuning.trained == Trained::all) return 0;
  return decoded_part_bytes(spec, tuning.base, 1, element_bytes(tuning.dtype));
}

ByCategory adapter_bytes(const TransformerSpec& spec, const FineTuning& tuning, bool trained) {
  ByCategory bytes;
  for (const TensorShape& shape : adapter_tensors(spec, tuning.adapters)) {
    const std::uint64_t value = round_to_granule(checked_product(shape.count(), element_bytes(tuning.dtype)));
    bytes[Category::parameters] = checked_sum(bytes[Category::parameters], value);
    if (trained) add_training(shape, tuning, bytes);
  }
  return bytes;
}

ByCategory fine_tuning_bytes(const TransformerSpec& spec, const FineTuning& tuning) {
  ByCategory bytes;
  if (tuning.trained == Trained::adapters) bytes = adapter_bytes(spec, tuning, true);
  const quantised::Format base = tuning.trained == Trained::all ? quantised::Format{} : tuning.base;
  for (const TensorShape& shape : tensors_of(spec)) {
    const quantised::Format format = quantised::format_of(shape, base);
    const auto matrix = quantised::matrix_bytes(format, shape.rows, shape.columns, element_bytes(tuning.dtype));
    bytes[Category::parameters] = checked_sum(bytes[Category::parameters], matrix.allocated);
    const bool trained =
        tuning.trained == Trained::all || (tuning.trained == Trained::head && shape.name == "head weight");
    if (trained) add_training(shape, tuning, bytes);
  }
  bytes[Category::optimizer] = checked_sum(bytes[Category::optimizer], scale_state_bytes());
  bytes[Category::workspace] = checked_sum(round_to_granule(sizeof(float)), decoded_part_bytes(spec, tuning));
  return bytes;
}

PeakBytes base_peak(const TransformerSpec& spec, const FineTuning& tuning) {
  const quantised::Format format = tuning.trained == Trained::all ? quantised::Format{} : tuning.base;
  const quantised::ModelBytes base = quantised::model_bytes(spec, format, tuning.dtype);
  PeakBytes peak;
  peak.at_peak[Category::parameters] = base.all.allocated;
  peak.at_peak[Category::workspace] = base.loading.total();
  return peak;
}

PeakBytes fine_tuning_peak(const TransformerSpec& spec, const FineTuning& tuning, StepLevers levers) {
  levers.element_bytes = element_bytes(tuning.dtype);
  levers.trained = tuning.trained;
  levers.adapters = tuning.adapters;
  return later_peak(base_peak(spec, tuning), simulate_step(spec, levers, fine_tuning_bytes(spec, tuning)));
}

}  // namespace oomlab::nn
