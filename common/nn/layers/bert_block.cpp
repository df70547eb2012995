// Post-norm (BERT): norm(x + attention(x)), then norm(that + MLP(that)).

#include "nn/layers/transformer_block.h"
#include "nn/ops/instances.h"
#include "nn/ops/matmul.h"

namespace oomlab::nn {

template <class T>
DeviceBuffer<T> bert_forward(const Block<T>& block, const Keep& keep, LayerActivations<T>& kept, bool output) {
  block.qkv(block.x, kept);
  block.attend(keep, kept);

  kept.norm1 = block.activation(block.count(), "norm 1");
  block.norm(Block<T>::kNorm1, kept.middle.data(), kept.mean1, kept.rstd1, kept.norm1.data());
  if (!keep.layer || !keep.post_attention_residual) kept.middle.reset();
  block.expand(kept.norm1.data(), kept);
  DeviceBuffer<T> y = block.second_half(kept.norm1, "layer sum", keep, kept);
  if (!keep.layer || !keep.norms) kept.norm1.reset();
  kept.sum = std::move(y);
  if (output) y = block.activation(block.count(), "layer input");
  block.norm(Block<T>::kNorm2, kept.sum.data(), kept.mean2, kept.rstd2, y.data());
  if (!keep.layer) kept = {};
  return y;
}

template <class T>
void bert_backward(const Block<T>& block, LayerActivations<T> kept, DeviceBuffer<T>& d, bool accumulate) {
  // The gradient through a branch is added to the residual's: with several parts, in the first of them.
  const auto onto_residual = [&](std::size_t product, const DeviceBuffer<T>& d_product, std::size_t columns) {
    gemm(block.context, false, false, block.rows(), block.width, columns, 1.0f, d_product.data(), block.value(product),
         block.first_part ? 1.0f : 0.0f, d.data());
    block.sum_over_parts(d);
  };
  block.norm_backward(Block<T>::kNorm2, d, kept.sum.data(), kept.mean2, kept.rstd2, d, accumulate);
  kept.sum.reset();
  DeviceBuffer<T> d_hidden = block.contract_backward(d, kept, accumulate);
  block.recompute_middle(kept);
  block.recompute_norm(kept.norm1, Block<T>::kNorm1, kept.middle.data(), kept.mean1, kept.rstd1);
  block.weights(Block<T>::kExpand, d_hidden, kept.norm1.data(), block.width, block.hidden, accumulate);
  kept.norm1.reset();
  onto_residual(Block<T>::kExpand, d_hidden, block.hidden);
  d_hidden.reset();
  block.norm_backward(Block<T>::kNorm1, d, kept.middle.data(), kept.mean1, kept.rstd1, d, accumulate);

  const DeviceBuffer<T> d_qkv = block.attend_backward(d, kept, accumulate);
  block.weights(Block<T>::kQkv, d_qkv, block.x, block.width, 3 * block.inner(), accumulate);
  onto_residual(Block<T>::kQkv, d_qkv, 3 * block.inner());
}

#define OOMLAB_BERT(T)                                                                             \
  template DeviceBuffer<T> bert_forward(const Block<T>&, const Keep&, LayerActivations<T>&, bool); \
  template void bert_backward(const Block<T>&, LayerActivations<T>, DeviceBuffer<T>&, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_BERT)

}  // namespace oomlab::nn
