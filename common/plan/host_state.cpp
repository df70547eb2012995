#include "plan/host_state.h"

#include <algorithm>

#include "plan/bytes.h"
#include "plan/step_units.h"

namespace oomlab::nn {

namespace {

// What the CPU updates: the state of the same step with its optimizer on the device.
std::uint64_t state_on_host(const TransformerSpec& spec, const StepLevers& levers) {
  StepLevers on_device = levers;
  on_device.gradients = GradientLife::optimizer_in_backward;
  on_device.loss_scale = false;
  return unit_state_bytes(spec, on_device)[Category::optimizer];
}

}  // namespace

std::uint64_t pinned_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  if (levers.gradients != GradientLife::offloaded) return 0;
  const UnitElements units(spec, levers);
  const std::uint64_t shards = levers.shards(1);
  const auto piece_bytes = [&](std::uint64_t elements) {
    return round_to_granule(checked_product(elements / shards, levers.element_bytes));
  };
  std::uint64_t all_pieces = checked_product(units.layers, piece_bytes(units.layer));
  for (const std::uint64_t unit : {units.token, units.embedding, units.head})
    all_pieces = checked_sum(all_pieces, piece_bytes(unit));
  const std::uint64_t largest = piece_bytes(std::max({units.token, units.embedding, units.layer, units.head}));
  const bool has_master = levers.optimizer.weights == WeightForm::master;
  std::uint64_t bytes = state_on_host(spec, levers);
  bytes = checked_sum(bytes, checked_product(2, largest));                                      // gradients
  const bool pieces = has_master && !levers.streamed;
  bytes = checked_sum(bytes, pieces ? checked_product(2, largest) : all_pieces);  // weights
  if (levers.micro_batches > 1 || levers.loss_scale) bytes = checked_sum(bytes, all_pieces);  // sums
  return bytes;
}

double host_update_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  if (levers.gradients != GradientLife::offloaded) return 0;
  const UnitElements units(spec, levers);
  const std::uint64_t layers = checked_product(units.layers, units.layer);
  const std::uint64_t elements = checked_sum(checked_sum(units.token, units.embedding), checked_sum(layers, units.head));
  const double weights = levers.optimizer.weights == WeightForm::master ? 1 : 2;
  const double moved = double(elements / levers.shards(1)) * double(levers.element_bytes) * (1 + weights);
  return moved + 2 * double(state_on_host(spec, levers));
}

}  // namespace oomlab::nn
