// What a rank holds between steps.

#include <stdexcept>
#include <string>

#include "dtype.h"
#include "plan/bytes.h"
#include "plan/optimizer_state.h"
#include "plan/step.h"
#include "plan/step_units.h"

namespace oomlab::nn {

namespace {

// FP32 arrays that AdamW keeps of a unit: its moments, and of weights that are not FP32 themselves a master copy.
// Whoever adds a format decides here what its weights keep.
std::uint64_t optimizer_arrays(std::uint64_t weight_bytes) {
  const std::uint64_t moments = state_buffers(UpdateRule::adamw);
  if (weight_bytes == element_bytes(DType::fp32)) return moments;
  if (weight_bytes == element_bytes(DType::bf16)) return moments + 1;
  throw std::invalid_argument("no optimizer state is known for weights of " + std::to_string(weight_bytes) + " bytes");
}

}  // namespace

ByCategory unit_state_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  const UnitElements units(spec, levers);
  // Of each unit all of an array, or a shard from this ZeRO stage on.
  const auto array_bytes = [&](int sharded_from, std::uint64_t bytes_per_element) {
    const std::uint64_t shards = levers.zero >= sharded_from ? levers.replicas : 1;
    const auto unit_bytes = [&](std::uint64_t elements) {
      return round_to_granule(checked_product(elements / shards, bytes_per_element));
    };
    const std::uint64_t embeddings = checked_sum(unit_bytes(units.token), unit_bytes(units.embedding));
    const std::uint64_t layers = checked_product(units.layers, unit_bytes(units.layer));
    return checked_sum(checked_sum(embeddings, unit_bytes(units.head)), layers);
  };
  ByCategory state;
  state[Category::parameters] = array_bytes(3, levers.element_bytes);
  state[Category::gradients] = array_bytes(2, levers.element_bytes);
  const std::uint64_t arrays = optimizer_arrays(levers.element_bytes);
  state[Category::optimizer] = checked_product(array_bytes(1, element_bytes(DType::fp32)), arrays);
  state[Category::optimizer] = checked_sum(state[Category::optimizer], scale_state_bytes());
  return state;
}

}  // namespace oomlab::nn
