#include "plan/host_state.h"

#include <algorithm>

#include "plan/bytes.h"
#include "plan/step_units.h"

namespace oomlab::nn {

namespace {

// Units that the CPU updates: of which sizes, and how many.
struct UpdatedUnits {
  std::uint64_t token = 0;
  std::uint64_t embedding = 0;
  std::uint64_t layer = 0;
  std::uint64_t head = 0;
  std::uint64_t layers = 0;

  UpdatedUnits(const UnitElements& units, const StepLevers& levers)
      : layer(levers.frozen() ? units.adapters : units.layer), layers(units.layers) {
    if (levers.frozen()) return;
    token = units.token;
    embedding = units.embedding;
    head = units.head;
  }
};

// Of each unit a piece, each rounded to the granule.
template <class Units, class PieceBytes>
std::uint64_t all_pieces_of(const Units& units, PieceBytes piece_bytes) {
  std::uint64_t all = checked_product(units.layers, piece_bytes(units.layer));
  for (const std::uint64_t unit : {units.token, units.embedding, units.head}) all = checked_sum(all, piece_bytes(unit));
  return all;
}

std::uint64_t checkpoints_on_host(const TransformerSpec& spec, const StepLevers& levers) {
  if (!levers.checkpoints_on_host) return 0;
  const std::uint64_t inputs = recomputed_segments(levers.schedule);
  const std::uint64_t residual = residual_bytes(spec, levers.element_bytes, 1, levers.most_rows(), levers.row_shares());
  return checked_product(checked_product(levers.in_flight, inputs), residual);
}

}  // namespace

HostBytes host_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  HostBytes bytes;
  bytes.managed[Category::optimizer] = paged_state_bytes(spec, levers);
  bytes.pinned[Category::activations] = checkpoints_on_host(spec, levers);
  const bool base_is_here = levers.frozen() && levers.streamed;
  if (!base_is_here && !levers.optimizer_on_host()) return bytes;
  const UnitElements units(spec, levers);
  const auto bytes_of_shard = [&](std::uint64_t elements, std::uint64_t shards) {
    return round_to_granule(checked_product(elements / shards, levers.element_bytes));
  };
  std::uint64_t& weights = bytes.pinned[Category::parameters];
  if (base_is_here)
    weights = all_pieces_of(units, [&](std::uint64_t elements) { return bytes_of_shard(elements, levers.shards(3)); });
  if (!levers.optimizer_on_host()) return bytes;

  const UpdatedUnits updated(units, levers);
  const auto piece_bytes = [&](std::uint64_t elements) { return bytes_of_shard(elements, levers.shards(1)); };
  const std::uint64_t all_pieces = all_pieces_of(updated, piece_bytes);
  const std::uint64_t largest = piece_bytes(std::max({updated.token, updated.embedding, updated.layer, updated.head}));
  const std::uint64_t two_pieces = checked_product(2, largest);
  const bool has_master = levers.optimizer.weights == WeightForm::master;
  const bool weights_in_pieces = has_master && (levers.frozen() || !levers.streamed);
  const bool collects = levers.micro_batches > 1 || levers.loss_scale;
  bytes.pinned[Category::optimizer] = optimizer_state_bytes(spec, levers)[Category::optimizer];
  weights = checked_sum(weights, weights_in_pieces ? two_pieces : all_pieces);
  bytes.pinned[Category::gradients] = checked_sum(two_pieces, collects ? all_pieces : 0);
  return bytes;
}

double host_update_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  if (!levers.optimizer_on_host()) return 0;
  const std::uint64_t elements = UnitElements(spec, levers).trained(levers);
  const double weights = levers.optimizer.weights == WeightForm::master ? 1 : 2;
  const double moved = double(elements / levers.shards(1)) * double(levers.element_bytes) * (1 + weights);
  return moved + 2 * double(optimizer_state_bytes(spec, levers)[Category::optimizer]);
}

}  // namespace oomlab::nn
