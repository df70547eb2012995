#include "plan/flops.h"

#include "plan/attention.h"

namespace oomlab::nn {

LayerFlops layer_flops_of_each(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
                               const StepForm& form) {
  const std::uint64_t rows = seq, width = spec.width;
  const std::uint64_t middle = 2 * rows * width * width, last = 2 * rows * spec.hidden() * width;
  const std::uint64_t linear = 2 * rows * width * (spec.qkv_width() + spec.before_activation()) + middle + last;
  const AttentionShape attention{sequences, seq, spec.heads, spec.width, !spec.bert(), spec.keys()};
  std::uint64_t forward_tile = seq, backward_tile = seq;
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

LayerFlops layer_flops(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq, const StepForm& form) {
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

std::uint64_t step_flops(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
                         const Schedule& schedule, const StepForm& form) {
  return sequences * step_flops_of_each(spec, sequences, seq, schedule, form);
}

std::uint64_t step_flops_of_each(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
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
