// Bytes of a step that need no walk.

#include <stdexcept>
#include <string>

#include "dtype.h"
#include "plan/bytes.h"
#include "plan/optimizer.h"
#include "plan/step_units.h"
#include "plan/step_walk.h"

namespace oomlab::nn {

std::uint64_t token_batch_bytes(std::uint64_t sequences, std::uint64_t seq) {
  return checked_product(round_to_granule(checked_product(checked_product(sequences, seq), sizeof(int))), 2);
}

namespace {

// FP32 arrays that AdamW keeps of a unit: two moments, and of weights that are no FP32 numbers themselves a master copy.
// Whoever adds a format decides here what its weights keep.
std::uint64_t optimizer_arrays(std::uint64_t weight_bytes) {
  if (weight_bytes == element_bytes(DType::fp32)) return 2;
  if (weight_bytes == element_bytes(DType::bf16)) return 3;
  throw std::invalid_argument("no optimizer state is known for weights of " + std::to_string(weight_bytes) + " bytes");
}

}  // namespace

ByCategory unit_state_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  const UnitElements units(spec, levers);
  const std::uint64_t e = levers.element_bytes;
  // Of each unit all, or a shard from this ZeRO stage on.
  const auto bytes = [&](int sharded_from, std::uint64_t element_bytes) {
    const std::uint64_t shards = levers.zero >= sharded_from ? levers.replicas : 1;
    const auto unit = [&](std::uint64_t elements) {
      return round_to_granule(checked_product(elements / shards, element_bytes));
    };
    const std::uint64_t rest = checked_sum(checked_sum(unit(units.token), unit(units.embedding)), unit(units.head));
    return checked_sum(rest, checked_product(units.layers, unit(units.layer)));
  };
  ByCategory state;
  state[Category::parameters] = bytes(3, e);
  state[Category::gradients] = bytes(2, e);
  state[Category::optimizer] =
      checked_sum(checked_product(bytes(1, element_bytes(DType::fp32)), optimizer_arrays(e)), scale_state_bytes());
  return state;
}

}  // namespace oomlab::nn
