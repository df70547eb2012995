#include "plan/host_state.h"

#include <algorithm>

#include "plan/bytes.h"
#include "plan/step_units.h"

namespace oomlab::nn {

std::uint64_t pinned_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  if (!levers.optimizer_on_host()) return 0;
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
  std::uint64_t bytes = optimizer_state_bytes(spec, levers)[Category::optimizer];
  bytes = checked_sum(bytes, checked_product(2, largest));  // gradients
  const bool pieces = has_master && !levers.streamed;
  bytes = checked_sum(bytes, pieces ? checked_product(2, largest) : all_pieces);              // weights
  if (levers.micro_batches > 1 || levers.loss_scale) bytes = checked_sum(bytes, all_pieces);  // sums
  return bytes;
}

double host_update_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  if (!levers.optimizer_on_host()) return 0;
  const UnitElements units(spec, levers);
  const std::uint64_t layers = checked_product(units.layers, units.layer);
  const std::uint64_t elements =
      checked_sum(checked_sum(units.token, units.embedding), checked_sum(layers, units.head));
  const double weights = levers.optimizer.weights == WeightForm::master ? 1 : 2;
  const double moved = double(elements / levers.shards(1)) * double(levers.element_bytes) * (1 + weights);
  return moved + 2 * double(optimizer_state_bytes(spec, levers)[Category::optimizer]);
}

}  // namespace oomlab::nn
