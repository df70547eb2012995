#include "plan/flops.h"

#include "plan/attention.h"

namespace oomlab::nn {

namespace {

// Weights of a layer's matrices.
std::uint64_t matrix_elements(const TransformerSpec& spec) {
  return spec.width * (spec.qkv_width() + spec.width + spec.before_activation() + spec.hidden());
}

}  // namespace

LayerFlops layer_flops_of_each(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
                               const StepForm& form, std::uint64_t head_shares) {
  // Products of [seq, in] and [in, out].
  const auto linear_flops = [&](std::uint64_t in, std::uint64_t out) { return 2 * seq * in * out; };
  const std::uint64_t qkv_projection = linear_flops(spec.width, spec.qkv_width());
  const std::uint64_t output_projection = linear_flops(spec.width, spec.width);
  const std::uint64_t up_projection = linear_flops(spec.width, spec.before_activation());
  const std::uint64_t down_projection = linear_flops(spec.hidden(), spec.width);
  const std::uint64_t linear = qkv_projection + output_projection + up_projection + down_projection;

  const AttentionShape attention{sequences, seq, spec.heads, spec.width, !spec.bert(), spec.keys()};
  std::uint64_t forward_tile = seq;
  std::uint64_t backward_tile = seq;
  std::uint64_t backward_products = 4;
  if (form.attention == AttentionForm::tiled) {
    AttentionShape of_rank = attention;
    of_rank.heads /= head_shares;
    of_rank.width /= head_shares;
    of_rank.kv_heads /= head_shares;
    forward_tile = attention_tile(of_rank).rows;
    backward_tile = forward_tile;
    backward_products = 5;  // scores again
  } else if (form.attention == AttentionForm::fused) {
    const FusedTiles tiles = fused_tiles(spec.depth());
    forward_tile = tiles.forward;
    backward_tile = tiles.backward;
    backward_products = 7;  // scores, and the gradients of probabilities, in both kernels
  }
  AttentionShape one_sequence = attention;
  one_sequence.sequences = 1;
  const std::uint64_t scores = score_product_flops(one_sequence, forward_tile);
  const std::uint64_t attention_backward = backward_products * score_product_flops(one_sequence, backward_tile);

  LayerFlops flops{};
  flops.forward = linear + 2 * scores;
  flops.backward = 2 * linear + attention_backward;
  flops.mlp_again = form.tiles_mlp() ? up_projection : 0;
  flops.last_product = spec.bert() ? 0 : down_projection + flops.mlp_again;
  flops.probabilities = form.attention == AttentionForm::textbook ? scores : 0;
  flops.post_attention_residual = output_projection;
  if (!form.keep.layer) {
    flops.recompute_in_backward = flops.forward - flops.last_product;
  } else {
    if (!form.keep.post_attention_residual) flops.recompute_in_backward += flops.post_attention_residual;
    if (!form.keep.probabilities) flops.recompute_in_backward += flops.probabilities;
  }
  return flops;
}

LayerFlops layer_flops(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq, const StepForm& form) {
  const LayerFlops each = layer_flops_of_each(spec, sequences, seq, form);
  return {.forward = sequences * each.forward,
          .backward = sequences * each.backward,
          .last_product = sequences * each.last_product,
          .probabilities = sequences * each.probabilities,
          .post_attention_residual = sequences * each.post_attention_residual,
          .recompute_in_backward = sequences * each.recompute_in_backward,
          .mlp_again = sequences * each.mlp_again};
}

std::uint64_t recompute_flops(const LayerFlops& layer, const Segment& segment) {
  const std::uint64_t by_tiles = segment.layers * layer.mlp_again;
  // The last layer of a segment is rebuilt right before its backward pass, and leaves out what that does not read.
  if (segment.recompute) {
    const std::uint64_t segment_forward = segment.layers * layer.forward - layer.last_product;
    return segment_forward + (segment.layers - 1) * layer.recompute_in_backward + by_tiles;
  }
  if (!segment.keep.layer) return segment.layers * (layer.forward - layer.last_product) + by_tiles;
  std::uint64_t of_layer = 0;
  if (!segment.keep.probabilities) of_layer += layer.probabilities;
  if (!segment.keep.post_attention_residual) of_layer += layer.post_attention_residual;
  return segment.layers * of_layer + by_tiles;
}

std::uint64_t step_flops(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
                         const Schedule& schedule, const StepForm& form, Trained trained, std::uint64_t head_shares) {
  return sequences * step_flops_of_each(spec, sequences, seq, schedule, form, trained, head_shares);
}

std::uint64_t step_flops_of_each(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
                                 const Schedule& schedule, const StepForm& form, Trained trained,
                                 std::uint64_t head_shares) {
  LayerFlops layer = layer_flops_of_each(spec, sequences, seq, form, head_shares);
  std::uint64_t head = 2 * seq * spec.width * spec.vocabulary;
  if (spec.bert()) head += 2 * seq * spec.width * spec.width;
  std::uint64_t recompute = 0;
  for (const Segment& segment : schedule) recompute += recompute_flops(layer, segment);
  if (schedule.empty()) recompute = recompute_flops(layer, {spec.layers, false, form.keep});
  std::uint64_t of_head = 3 * head;
  if (trained == Trained::adapters) {  // no gradients of the layers' matrices, and none of the head's
    layer.backward -= 2 * seq * matrix_elements(spec);
    of_head -= head;
  }
  return (layer.forward + layer.backward) * spec.layers + of_head + recompute;
}

std::uint64_t adapter_flops_of_each(const TransformerSpec& spec, const AdapterForm& adapters, std::uint64_t parts,
                                    std::uint64_t seq, const Schedule& schedule, const StepForm& form) {
  std::uint64_t all = 0;
  std::uint64_t projection = 0;
  std::uint64_t left_out = 0;  // of a layer that is computed again
  std::uint64_t by_tiles = 0;  // again in every backward pass
  for (const AdapterSlot& whole : adapter_slots(spec, adapters.targets)) {
    const AdapterSlot slot = whole.of_part(parts);
    const std::uint64_t forward = 2 * seq * adapters.rank * (slot.in + slot.out);
    all += forward;
    if (slot.matrix == LayerMatrix::projection) projection += forward;
    if (slot.matrix == LayerMatrix::up && form.tiles_mlp()) by_tiles += forward;
    if (slot.matrix == LayerMatrix::down) left_out += forward;
  }
  const auto again = [&](const Keep& keep) {
    if (!keep.layer) return all - left_out - by_tiles;
    return keep.post_attention_residual ? 0 : projection;
  };
  std::uint64_t flops = 0;
  for (const Segment& segment : schedule) {
    flops += segment.layers * (4 * all + by_tiles);
    flops += segment.recompute ? segment.layers * all - left_out - by_tiles + (segment.layers - 1) * again(form.keep)
                               : segment.layers * again(segment.keep);
  }
  return flops;
}

}  // namespace oomlab::nn
