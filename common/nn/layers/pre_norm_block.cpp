// Pre-norm (GPT-2, Llama): x + attention(norm(x)), then that + MLP(norm(that)).

#include "nn/layers/transformer_block.h"
#include "nn/ops/instances.h"

namespace oomlab::nn {

template <class T>
DeviceBuffer<T> pre_norm_forward(Block<T> block) {
  decoder_layer(block, block.layer, block.x);
  if (!block.wants_output) return {};
  if (!block.keep.layer) block.kept = {};
  if (!block.keep.post_attention_residual) block.kept.middle.reset();
  return std::move(block.output);
}

// From the gradient of the MLP's first product to that of `middle`, added to d: where the norm's output was not kept,
// some rows' of it at a time.
template <class T>
static void up_backward_by_rows(const Block<T>& block, DeviceBuffer<T> d_hidden, DeviceBuffer<T>& d, bool accumulate) {
  LayerActivations<T>& kept = block.kept;
  const auto& norm = block.layer.norm2;
  const auto& up = block.layer.up;
  DeviceBuffer<T> chunk = block.activation(checked_product(block.chunk_rows(), block.width()), "norm of some rows");
  block.each_chunk([&](std::size_t first, std::size_t count) {
    const T* const before = kept.middle.data() + first * block.width();
    const T* const dh = d_hidden.data() + first * block.before();
    const bool add = accumulate || first > 0;
    if (up.needs_input()) norm.recompute(block.context, before, chunk.data(), kept.stats2, first, count);
    up.backward_weights(block.context, dh, chunk.data(), count, add, first);
    up.backward_input(block.context, dh, chunk.data(), count, false, first);
    T* const into = d.data() + first * block.width();
    norm.backward(block.context, chunk.data(), before, kept.stats2, into, first, count, true, add);
  });
  kept.stats2 = {};
}

// From the gradient of the MLP's output to that of `middle`, added to d. Where the norm's output is kept, or sums over
// parts are of all rows at once, its gradient takes its place; otherwise a tile of it comes and goes.
template <class T>
static void mlp_backward_by_tiles(const Block<T>& block, DeviceBuffer<T>& d, bool accumulate) {
  LayerActivations<T>& kept = block.kept;
  const auto& norm = block.layer.norm2;
  if (block.sum) block.recompute_norm(norm, kept.middle.data(), kept.norm2, kept.stats2);
  if (kept.norm2) {
    DeviceBuffer<T> rows = block.shared ? block.gathered(kept.norm2.data(), "norm of all rows") : std::move(kept.norm2);
    kept.norm2.reset();
    const auto rows_of_norm = [&](std::size_t first, std::size_t) { return rows.data() + first * block.width(); };
    block.mlp_backward_by_tiles(d, accumulate, rows_of_norm, false, false, [](std::size_t, std::size_t) {});
    rows = block.summed(std::move(rows), "norm gradient");
    block.norm_backward(norm, rows, kept.middle.data(), kept.stats2, d, accumulate);
    return;
  }
  DeviceBuffer<T> tile = block.activation(checked_product(block.chunk_rows(), block.width()), "norm of a tile");
  const auto before = [&](std::size_t first) { return kept.middle.data() + first * block.width(); };
  const auto computed_again = [&](std::size_t first, std::size_t count) {
    norm.recompute(block.context, before(first), tile.data(), kept.stats2, first, count);
    return tile.data();
  };
  block.mlp_backward_by_tiles(d, accumulate, computed_again, false, false, [&](std::size_t first, std::size_t count) {
    T* const into = d.data() + first * block.width();
    norm.backward(block.context, tile.data(), before(first), kept.stats2, into, first, count, true,
                  accumulate || first > 0);
  });
  kept.stats2 = {};
}

template <class T>
void pre_norm_backward(const Block<T>& block, DeviceBuffer<T>& d, bool accumulate) {
  // From the gradient of linear(norm(before)) to that of `before`, added to the residual's.
  const auto branch_backward = [&](const auto& linear, DeviceBuffer<T> dy, const Norm<T>& norm, const T* before,
                                   DeviceBuffer<T>& normed, NormStatistics& stats) {
    if (linear.needs_input()) block.recompute_norm(norm, before, normed, stats);
    DeviceBuffer<T> all;
    if (linear.needs_input()) all = block.gathered(normed.data(), "norm of all rows");
    linear.backward_weights(block.context, dy.data(), block.all_of(all, normed.data()), block.rows(), accumulate);
    all.reset();
    normed.reset();
    DeviceBuffer<T> d_norm = block.to_be_summed("norm gradient");
    linear.backward_input(block.context, dy.data(), d_norm.data(), block.rows());
    dy.reset();
    d_norm = block.summed(std::move(d_norm), "norm gradient");
    block.norm_backward(norm, d_norm, before, stats, d, accumulate);
  };
  const auto& layer = block.layer;
  LayerActivations<T>& kept = block.kept;
  DeviceBuffer<T> d_hidden;
  if (!block.tiles_mlp) d_hidden = block.contract_backward(d, accumulate);
  block.recompute_middle();
  if (block.tiles_mlp)
    mlp_backward_by_tiles(block, d, accumulate);
  else if (!kept.norm2 && block.by_rows && !block.sum)
    up_backward_by_rows(block, std::move(d_hidden), d, accumulate);
  else  // sums over parts are of all rows at once
    branch_backward(layer.up, std::move(d_hidden), layer.norm2, kept.middle.data(), kept.norm2, kept.stats2);
  DeviceBuffer<T> d_qkv = block.attend_backward(d, accumulate);
  branch_backward(layer.qkv, std::move(d_qkv), layer.norm1, block.x, kept.norm1, kept.stats1);
}

#define OOMLAB_PRE_NORM(T)                             \
  template DeviceBuffer<T> pre_norm_forward(Block<T>); \
  template void pre_norm_backward(const Block<T>&, DeviceBuffer<T>&, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_PRE_NORM)

}  // namespace oomlab::nn
