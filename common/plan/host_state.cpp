#include "plan/host_state.h"

#include <algorithm>

#include "plan/bytes.h"
#include "plan/step_units.h"

namespace oomlab::nn {

namespace {

std::uint64_t checkpoints_on_host(const TransformerSpec& spec, const StepLevers& levers) {
  if (!levers.checkpoints_on_host) return 0;
  std::uint64_t inputs = 0;
  for (const Segment& segment : levers.schedule) inputs += segment.recompute;
  const std::uint64_t residual = residual_bytes(spec, levers.element_bytes, levers.sequences, levers.seq);
  return checked_product(checked_product(levers.in_flight, inputs), residual);
}

}  // namespace

HostBytes host_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  HostBytes bytes;
  bytes.managed[Category::optimizer] = paged_state_bytes(spec, levers);
  bytes.pinned[Category::activations] = checkpoints_on_host(spec, levers);
  if (!levers.optimizer_on_host()) return bytes;
  const UnitElements units(spec, levers);
  const std::uint64_t shards = levers.shards(1);
  const auto piece_bytes = [&](std::uint64_t elements) {
    return round_to_granule(checked_product(elements / shards, levers.element_bytes));
  };
  std::uint64_t all_pieces = checked_product(units.layers, piece_bytes(units.layer));
  for (const std::uint64_t unit : {units.token, units.embedding, units.head})
    all_pieces = checked_sum(all_pieces, piece_bytes(unit));
  const std::uint64_t largest = piece_bytes(std::max({units.token, units.embedding, units.layer, units.head}));
  const std::uint64_t two_pieces = checked_product(2, largest);
  const bool has_master = levers.optimizer.weights == WeightForm::master;
  const bool weights_in_pieces = has_master && !levers.streamed;
  const bool collects = levers.micro_batches > 1 || levers.loss_scale;
  bytes.pinned[Category::optimizer] = optimizer_state_bytes(spec, levers)[Category::optimizer];
  bytes.pinned[Category::parameters] = weights_in_pieces ? two_pieces : all_pieces;
  bytes.pinned[Category::gradients] = checked_sum(two_pieces, collects ? all_pieces : 0);
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
