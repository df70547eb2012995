// Post-norm (BERT): norm(x + attention(x)), then norm(that + MLP(that)).

#include "nn/layers/transformer_block.h"
#include "nn/ops/instances.h"

namespace oomlab::nn {

template <class T>
DeviceBuffer<T> bert_forward(Block<T> block, bool output) {
  const auto& layer = block.layer;
  const Keep& keep = block.keep;
  LayerActivations<T>& kept = block.kept;
  block.linear(layer.qkv, block.x);
  block.residual(layer.projection, block.attend(kept.qkv), block.x);
  block.norm(layer.norm1, kept.middle);
  if (!keep.layer || !keep.post_attention_residual) kept.middle.reset();
  block.linear(layer.up, kept.norm1.data());
  block.residual(layer.down, block.activate(kept.hidden), kept.norm1);
  if (!keep.layer || !keep.norms) kept.norm1.reset();
  kept.sum = std::move(block.output);
  DeviceBuffer<T> y;
  if (output) y = block.activation(block.own_count(), "layer input");
  kept.stats2 = layer.norm2.statistics(block.context, block.own_rows());
  layer.norm2.forward(block.context, kept.sum.data(), y.data(), kept.stats2, block.own_rows());
  if (!keep.layer) kept = {};
  return y;
}

template <class T>
void bert_backward(const Block<T>& block, DeviceBuffer<T>& d, bool accumulate) {
  const auto& layer = block.layer;
  const std::size_t rows = block.rows();
  LayerActivations<T>& kept = block.kept;
  // Gradients of all rows, summed up over the parts, are added to those of this part's rows.
  const auto add_sum = [&](DeviceBuffer<T> all) {
    const DeviceBuffer<T> own = block.summed(std::move(all), "branch gradient");
    add_residual(block.context, d.data(), own.data(), nullptr, d.data(), block.own_rows(), block.width());
  };
  // The gradient through a branch is added to the residual's: with several parts that have all rows of it, in the first of
  // them.
  const auto onto_residual = [&](const auto& linear, const DeviceBuffer<T>& dy) {
    if (block.shared) {
      DeviceBuffer<T> all = block.to_be_summed("branch gradient");
      linear.backward_input(block.context, dy.data(), all.data(), rows);
      return add_sum(std::move(all));
    }
    linear.backward_input(block.context, dy.data(), d.data(), rows, block.first_part);
    block.sum_over_parts(d);
  };
  block.norm_backward(layer.norm2, d, kept.sum.data(), kept.stats2, d, accumulate);
  kept.sum.reset();
  DeviceBuffer<T> d_hidden;
  if (!block.tiles_mlp) d_hidden = block.contract_backward(d, accumulate);
  block.recompute_middle();
  if (layer.up.needs_input()) block.recompute_norm(layer.norm1, kept.middle.data(), kept.norm1, kept.stats1);
  if (block.tiles_mlp) {
    DeviceBuffer<T> all = block.shared ? block.gathered(kept.norm1.data(), "norm of all rows") : std::move(kept.norm1);
    kept.norm1.reset();
    const auto rows_of_norm = [&](std::size_t first, std::size_t) { return all.data() + first * block.width(); };
    block.mlp_backward_by_tiles(d, accumulate, rows_of_norm, !block.shared, block.first_part,
                                [](std::size_t, std::size_t) {});
    if (block.shared) add_sum(std::move(all));
    block.sum_over_parts(d);
  } else {
    DeviceBuffer<T> all = block.gathered(kept.norm1.data(), "norm of all rows");
    layer.up.backward_weights(block.context, d_hidden.data(), block.all_of(all, kept.norm1.data()), rows, accumulate);
    all.reset();
    kept.norm1.reset();
    onto_residual(layer.up, d_hidden);
    d_hidden.reset();
  }
  block.norm_backward(layer.norm1, d, kept.middle.data(), kept.stats1, d, accumulate);

  const DeviceBuffer<T> d_qkv = block.attend_backward(d, accumulate);
  DeviceBuffer<T> x = block.gathered(block.x, "layer input of all rows");
  layer.qkv.backward_weights(block.context, d_qkv.data(), block.all_of(x, block.x), rows, accumulate);
  x.reset();
  onto_residual(layer.qkv, d_qkv);
}

#define OOMLAB_BERT(T)                                   \
  template DeviceBuffer<T> bert_forward(Block<T>, bool); \
  template void bert_backward(const Block<T>&, DeviceBuffer<T>&, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_BERT)

}  // namespace oomlab::nn
