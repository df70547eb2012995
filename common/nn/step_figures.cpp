// Bytes and operations of a step that need no walk.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "dtype.h"
#include "nn/mixed_precision.h"
#include "nn/step_units.h"

namespace oomlab::nn {

std::size_t token_batch_bytes(std::size_t sequences, std::size_t seq) {
  return checked_product(round_to_granule(checked_product(checked_product(sequences, seq), sizeof(int))), 2);
}

std::size_t tensor_bytes(const TransformerSpec& spec, std::size_t element_bytes) {
  std::size_t sum = 0;
  visit_whole(spec, [&](const Place& p) {
    sum = checked_sum(sum, round_to_granule(checked_product(checked_product(p.rows, p.columns), element_bytes)));
  });
  return sum;
}

namespace {

// FP32 arrays that AdamW keeps of a unit: two moments, and of weights that are no FP32 numbers themselves a master copy
// (nn/mixed_precision.h). Whoever adds a format decides here what its weights keep.
std::size_t optimizer_arrays(std::size_t weight_bytes) {
  if (weight_bytes == element_bytes(DType::fp32)) return 2;
  if (weight_bytes == element_bytes(DType::bf16)) return 3;
  throw std::invalid_argument("no optimizer state is known for weights of " + std::to_string(weight_bytes) + " bytes");
}

}  // namespace

ByCategory unit_state_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  const UnitElements units(spec, levers);
  const std::size_t e = levers.element_bytes;
  // Of each unit all, or a shard from this ZeRO stage on.
  const auto bytes = [&](int sharded_from, std::size_t element_bytes) {
    const std::size_t shards = levers.zero >= sharded_from ? levers.replicas : 1;
    const auto unit = [&](std::size_t elements) {
      return round_to_granule(checked_product(elements / shards, element_bytes));
    };
    const std::size_t rest = checked_sum(checked_sum(unit(units.token), unit(units.embedding)), unit(units.head));
    return checked_sum(rest, checked_product(units.layers, unit(units.layer)));
  };
  ByCategory state;
  state[Category::parameters] = bytes(3, e);
  state[Category::gradients] = bytes(2, e);
  state[Category::optimizer] =
      checked_sum(checked_product(bytes(1, sizeof(float)), optimizer_arrays(e)), scale_state_bytes());
  return state;
}

LayerFlops layer_flops_of_each(const TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                               const StepForm& form) {
  const std::uint64_t rows = seq, width = spec.width;
  const std::uint64_t middle = 2 * rows * width * width, last = 2 * rows * spec.hidden() * width;
  const std::uint64_t linear = 2 * rows * width * (spec.qkv_width() + spec.before_activation()) + middle + last;
  const AttentionShape attention{sequences, seq, spec.heads, spec.width, !spec.bert(), spec.keys()};
  std::size_t forward_tile = seq, backward_tile = seq;
  std::uint64_t backward_products = 4;
  if (form.attention == AttentionForm::tiled) {
    forward_tile = backward_tile = attention_tile(attention).rows;
    backward_products = 5;  // scores again
  } else if (form.attention == AttentionForm::fused) {
    const FusedTiles tiles = fused_tiles(spec.width / spec.heads);
    forward_tile = tiles.forward, backward_tile = tiles.backward;
    backward_products = 7;  // scores, and the gradients of probabilities, in both kernels
  }
  AttentionShape each = attention;
  each.sequences = 1;
  const std::uint64_t scores = score_product_flops(each, forward_tile);
  const std::uint64_t attention_backward = backward_products * score_product_flops(each, backward_tile);
  const std::uint64_t last_product = spec.bert() ? 0 : last;
  const std::uint64_t probabilities = form.attention == AttentionForm::textbook ? scores : 0;
  return {.forward = linear + 2 * scores,
          .backward = 2 * linear + attention_backward,
          .last_product = last_product,
          .probabilities = probabilities,
          .middle = middle,
          .again = !form.keep.layer ? linear + 2 * scores - last_product
                                    : (form.keep.middle ? 0 : middle) + (form.keep.probabilities ? 0 : probabilities)};
}

LayerFlops layer_flops(const TransformerSpec& spec, std::size_t sequences, std::size_t seq, const StepForm& form) {
  const std::uint64_t n = sequences;
  const LayerFlops each = layer_flops_of_each(spec, sequences, seq, form);
  return {.forward = n * each.forward,
          .backward = n * each.backward,
          .last_product = n * each.last_product,
          .probabilities = n * each.probabilities,
          .middle = n * each.middle,
          .again = n * each.again};
}

std::uint64_t recompute_flops(const LayerFlops& layer, const Segment& segment) {
  // The last layer of a segment is rebuilt right before its backward pass, and leaves out what that does not read.
  if (segment.recompute)
    return segment.layers * layer.forward - layer.last_product + (segment.layers - 1) * layer.again;
  if (!segment.keep.layer) return segment.layers * (layer.forward - layer.last_product);
  return segment.layers *
         ((segment.keep.probabilities ? 0 : layer.probabilities) + (segment.keep.middle ? 0 : layer.middle));
}

std::uint64_t step_flops(const TransformerSpec& spec, std::size_t sequences, std::size_t seq, const Schedule& schedule,
                         const StepForm& form) {
  return sequences * step_flops_of_each(spec, sequences, seq, schedule, form);
}

std::uint64_t step_flops_of_each(const TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                                 const Schedule& schedule, const StepForm& form) {
  const std::uint64_t rows = seq;
  const LayerFlops layer = layer_flops_of_each(spec, sequences, seq, form);
  std::uint64_t head = 2 * rows * spec.width * spec.vocabulary, recompute = 0;
  if (spec.bert()) head += 2 * rows * spec.width * spec.width;
  for (const Segment& segment : schedule) recompute += recompute_flops(layer, segment);
  if (schedule.empty()) recompute = recompute_flops(layer, {spec.layers, false, form.keep});
  return (layer.forward + layer.backward) * spec.layers + 3 * head + recompute;
}

}  // namespace oomlab::nn
