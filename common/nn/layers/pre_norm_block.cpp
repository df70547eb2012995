// Pre-norm (GPT-2, Llama): x + attention(norm(x)), then that + MLP(norm(that)).

#include "nn/layers/transformer_block.h"
#include "nn/ops/activation.h"
#include "nn/ops/instances.h"

namespace oomlab::nn {

namespace {

// A pass of whole sequences through a layer that is trained: every value has a buffer of its own, which is freed as
// soon as neither this pass nor the backward pass reads it.
template <class T>
struct TrainingPass {
  using Buffer = DeviceBuffer<T>;
  using Weighted = typename Block<T>::Weighted;
  const Block<T>& block;
  const Keep& keep;
  LayerActivations<T>& kept;
  bool wants_output;
  Buffer output = {};

  static const T* data(const T* x) { return x; }
  static const T* data(const Buffer& x) { return x.data(); }

  template <class From>
  Buffer& norm(const Norm<T>& norm, const From& from) {
    const bool first = &norm == &block.layer.norm1;
    Buffer& to = first ? kept.norm1 : kept.norm2;
    to = block.activation(block.count(), first ? "norm 1" : "norm 2");
    NormStatistics& stats = first ? kept.stats1 : kept.stats2;
    stats = norm.statistics(block.context, block.rows());
    norm.forward(block.context, data(from), to.data(), stats, block.rows());
    return to;
  }
  Buffer& linear(const Weighted& linear, Buffer& norm) {
    const bool first = &linear == &block.layer.qkv;
    Buffer& to = first ? kept.qkv : kept.hidden;
    to = block.linear(linear, norm.data(), first ? "qkv" : block.hidden_tag());
    if (!keep.layer || !keep.norms || !linear.needs_input()) norm.reset();
    return to;
  }
  void rotate(Buffer& qkv) {
    if (block.spec.llama()) block.rotate(qkv.data(), false);
  }
  Buffer& attend(Buffer&) {
    block.attend(keep, kept);
    return kept.attended;
  }
  Buffer& activate(Buffer&) {
    if (wants_output || keep.gelu) block.activate(keep, kept);
    return kept.activated;
  }
  Buffer& residual(const Weighted&, Buffer&, const T*) {
    block.middle(keep, kept);
    return kept.middle;
  }
  Buffer& residual(const Weighted& down, Buffer&, Buffer& middle) {
    if (!wants_output) return output;
    if (!block.activates_by_rows(keep) || keep.post_attention_residual || block.sum) {
      output = block.contract(middle.data(), "layer input", keep, kept);
    } else {
      output = std::move(middle);  // which is not kept, so the output may take its place
      block.contract_by_rows(kept, true, output.data());
      if (down.bias)
        bias_activation(block.context, output.data(), down.bias, block.rows(), block.width(), Activation::none);
    }
    return output;
  }
};

}  // namespace

template <class T>
DeviceBuffer<T> pre_norm_forward(const Block<T>& block, const Keep& keep, LayerActivations<T>& kept, bool output) {
  TrainingPass<T> pass{block, keep, kept, output};
  decoder_layer(pass, block.layer, block.x);
  if (!output) return {};
  if (!keep.layer) kept = {};
  if (!keep.post_attention_residual) kept.middle.reset();
  return std::move(pass.output);
}

// From the gradient of the MLP's first product to that of `middle`, added to d: where the norm's output was not kept,
// some rows' of it at a time.
template <class T>
static void up_backward_by_rows(const Block<T>& block, DeviceBuffer<T> d_hidden, LayerActivations<T>& kept,
                                DeviceBuffer<T>& d, bool accumulate) {
  const auto& norm = block.layer.norm2;
  const auto& up = block.layer.up;
  DeviceBuffer<T> chunk = block.activation(checked_product(block.chunk_rows(), block.width()), "norm of some rows");
  block.each_chunk([&](std::size_t first, std::size_t count) {
    const T* const before = kept.middle.data() + first * block.width();
    const T* const dh = d_hidden.data() + first * block.before();
    const bool add = accumulate || first > 0;
    if (up.needs_input()) norm.recompute(block.context, before, chunk.data(), kept.stats2, first, count);
    up.backward_weights(block.context, dh, chunk.data(), count, add);
    up.backward_input(block.context, dh, chunk.data(), count);
    T* const into = d.data() + first * block.width();
    norm.backward(block.context, chunk.data(), before, kept.stats2, into, first, count, true, add);
  });
  kept.stats2 = {};
}

template <class T>
void pre_norm_backward(const Block<T>& block, LayerActivations<T> kept, DeviceBuffer<T>& d, bool accumulate) {
  // From the gradient of linear(norm(before)) to that of `before`, added to the residual's.
  const auto branch_backward = [&](const auto& linear, DeviceBuffer<T> dy, const Norm<T>& norm, const T* before,
                                   DeviceBuffer<T>& normed, NormStatistics& stats) {
    if (linear.needs_input()) block.recompute_norm(norm, before, normed, stats);
    linear.backward_weights(block.context, dy.data(), normed.data(), block.rows(), accumulate);
    normed.reset();
    DeviceBuffer<T> d_norm = block.activation(block.count(), "norm gradient");
    linear.backward_input(block.context, dy.data(), d_norm.data(), block.rows());
    block.sum_over_parts(d_norm);
    dy.reset();
    block.norm_backward(norm, d_norm, before, stats, d, accumulate);
  };
  const auto& layer = block.layer;
  DeviceBuffer<T> d_hidden = block.contract_backward(d, kept, accumulate);
  block.recompute_middle(kept);
  if (!kept.norm2 && block.by_rows && !block.sum)
    up_backward_by_rows(block, std::move(d_hidden), kept, d, accumulate);
  else  // sums over parts are of all rows at once
    branch_backward(layer.up, std::move(d_hidden), layer.norm2, kept.middle.data(), kept.norm2, kept.stats2);
  DeviceBuffer<T> d_qkv = block.attend_backward(d, kept, accumulate);
  branch_backward(layer.qkv, std::move(d_qkv), layer.norm1, block.x, kept.norm1, kept.stats1);
}

#define OOMLAB_PRE_NORM(T)                                                                             \
  template DeviceBuffer<T> pre_norm_forward(const Block<T>&, const Keep&, LayerActivations<T>&, bool); \
  template void pre_norm_backward(const Block<T>&, LayerActivations<T>, DeviceBuffer<T>&, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_PRE_NORM)

}  // namespace oomlab::nn
