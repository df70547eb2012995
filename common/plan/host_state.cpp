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

}  // namespace

std::uint64_t pinned_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  const UnitElements units(spec, levers);
  const auto bytes_of_shard = [&](std::uint64_t elements, std::uint64_t shards) {
    return round_to_granule(checked_product(elements / shards, levers.element_bytes));
  };
  std::uint64_t bytes = 0;
  if (levers.frozen() && levers.streamed)
    bytes = all_pieces_of(units, [&](std::uint64_t elements) { return bytes_of_shard(elements, levers.shards(3)); });
  if (!levers.optimizer_on_host()) return bytes;

  const UpdatedUnits updated(units, levers);
  const auto piece_bytes = [&](std::uint64_t elements) { return bytes_of_shard(elements, levers.shards(1)); };
  const std::uint64_t all_pieces = all_pieces_of(updated, piece_bytes);
  const std::uint64_t largest = piece_bytes(std::max({updated.token, updated.embedding, updated.layer, updated.head}));
  const bool has_master = levers.optimizer.weights == WeightForm::master;
  bytes = checked_sum(bytes, optimizer_state_bytes(spec, levers)[Category::optimizer]);
  bytes = checked_sum(bytes, checked_product(2, largest));  // gradients
  const bool pieces = has_master && (levers.frozen() || !levers.streamed);
  bytes = checked_sum(bytes, pieces ? checked_product(2, largest) : all_pieces);              // weights
  if (levers.micro_batches > 1 || levers.loss_scale) bytes = checked_sum(bytes, all_pieces);  // sums
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
