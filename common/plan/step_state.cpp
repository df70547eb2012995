// What a rank holds between steps.

#include "plan/bytes.h"
#include "plan/optimizer_state.h"
#include "plan/step.h"
#include "plan/step_units.h"

namespace oomlab::nn {

namespace {

// Of each unit all of an array, or a shard from this ZeRO stage on.
std::uint64_t array_bytes(const UnitElements& units, std::uint64_t shards, std::uint64_t bytes_per_element) {
  const auto unit_bytes = [&](std::uint64_t elements) {
    return round_to_granule(checked_product(elements / shards, bytes_per_element));
  };
  const std::uint64_t embeddings = checked_sum(unit_bytes(units.token), unit_bytes(units.embedding));
  const std::uint64_t layers = checked_product(units.layers, unit_bytes(units.layer));
  return checked_sum(checked_sum(embeddings, unit_bytes(units.head)), layers);
}

// Of shards: vectors, each of which has a part of a unit.
template <class BytesOf>
std::uint64_t state_of_shards(const UnitElements& units, const StepLevers& levers, BytesOf bytes_of) {
  const auto state = [&](const char* unit, std::uint64_t elements) {
    const TensorShape shard{"", unit, 1, elements / levers.replicas};
    return elements ? bytes_of(shard, levers.optimizer) : 0;
  };
  const std::uint64_t embeddings = checked_sum(state("token", units.token), state("embedding", units.embedding));
  const std::uint64_t layers = checked_product(units.layers, state("layer", units.layer));
  return checked_sum(checked_sum(embeddings, state("head", units.head)), layers);
}

}  // namespace

ByCategory optimizer_state_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  if (levers.shards(1) == 1) return optimizer_bytes(spec, levers.slice, levers.optimizer);
  ByCategory state;
  state[Category::optimizer] = state_of_shards(UnitElements(spec, levers), levers, state_bytes);
  return state;
}

std::uint64_t paged_state_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  if (!levers.optimizer.paged_moments) return 0;
  if (levers.shards(1) == 1) return paged_bytes(spec, levers.slice, levers.optimizer);
  const auto bytes_of = [](const TensorShape& shard, const OptimizerForm& form) { return paged_bytes(shard, form); };
  return state_of_shards(UnitElements(spec, levers), levers, bytes_of);
}

ByCategory unit_state_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  const UnitElements units(spec, levers);
  ByCategory state;
  if (!levers.optimizer_on_host()) state = optimizer_state_bytes(spec, levers);
  if (!levers.streamed) state[Category::parameters] = array_bytes(units, levers.shards(3), levers.element_bytes);
  if (levers.gradients == GradientLife::always)
    state[Category::gradients] = array_bytes(units, levers.shards(2), levers.element_bytes);
  if (levers.loss_scale) state[Category::optimizer] = checked_sum(state[Category::optimizer], scale_state_bytes());
  return state;
}

}  // namespace oomlab::nn
