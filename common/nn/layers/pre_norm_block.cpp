// Pre-norm (GPT-2, Llama): x + attention(norm(x)), then that + MLP(norm(that)).

#include "nn/layers/transformer_block.h"
#include "nn/ops/activation.h"
#include "nn/ops/instances.h"
#include "nn/ops/matmul.h"

namespace oomlab::nn {

template <class T>
DeviceBuffer<T> pre_norm_forward(const Block<T>& block, const Keep& keep, LayerActivations<T>& kept, bool output) {
  const bool keep_norms = keep.layer && keep.norms;
  kept.norm1 = block.activation(block.count(), "norm 1");
  block.norm(Block<T>::kNorm1, block.x, kept.mean1, kept.rstd1, kept.norm1.data());
  block.qkv(kept.norm1.data(), kept);
  if (!keep_norms) kept.norm1.reset();
  block.attend(keep, kept);

  kept.norm2 = block.activation(block.count(), "norm 2");
  block.norm(Block<T>::kNorm2, kept.middle.data(), kept.mean2, kept.rstd2, kept.norm2.data());
  block.expand(kept.norm2.data(), kept);
  if (!keep_norms) kept.norm2.reset();
  if (!output) {
    if (keep.gelu) block.activate(keep, kept);
    return {};
  }
  if (block.by_rows && keep.layer && !keep.gelu && !keep.post_attention_residual && !block.sum) {
    DeviceBuffer<T> y = std::move(kept.middle);  // which is not kept, so the output may take its place
    block.contract_by_rows(kept, 1.0f, y.data());
    if (const T* bias = block.value(Block<T>::kContract + 1))
      bias_activation(block.context, y.data(), bias, block.rows(), block.width, Activation::none);
    return y;
  }
  DeviceBuffer<T> y = block.second_half(kept.middle, "layer input", keep, kept);
  if (!keep.layer) kept = {};
  if (!keep.post_attention_residual) kept.middle.reset();
  return y;
}

// From the gradient of the MLP's first product to that of `middle`, added to d: where the norm's output was not kept,
// some rows' of it at a time.
template <class T>
static void pre_norm_expand_backward_by_rows(const Block<T>& block, DeviceBuffer<T> d_hidden, LayerActivations<T>& kept,
                                             DeviceBuffer<T>& d, bool accumulate) {
  constexpr std::size_t kExpand = Block<T>::kExpand, kNorm = Block<T>::kNorm2;
  DeviceBuffer<T> chunk = block.activation(checked_product(block.chunk_rows(), block.width), "norm of some rows");
  block.each_chunk([&](std::size_t first, std::size_t count) {
    const T* const before = kept.middle.data() + first * block.width;
    const T* const dh = d_hidden.data() + first * block.before();
    const float* const mean = kept.mean2 ? kept.mean2.data() + first : nullptr;
    const float* const rstd = kept.rstd2.data() + first;
    const bool add = accumulate || first > 0;
    block.recompute_norm_rows(kNorm, before, mean, rstd, chunk.data(), count);
    linear_backward_weight(block.context, dh, chunk.data(), block.gradient(kExpand), block.gradient(kExpand + 1), count,
                           block.width, block.before(), add);
    linear_backward_input(block.context, dh, block.value(kExpand), chunk.data(), count, block.width, block.before());
    block.norm_backward_rows(kNorm, chunk.data(), before, mean, rstd, d.data() + first * block.width, count, true, add);
  });
  kept.mean2.reset();
  kept.rstd2.reset();
}

template <class T>
void pre_norm_backward(const Block<T>& block, LayerActivations<T> kept, DeviceBuffer<T>& d, bool accumulate) {
  // From the gradient of a product's output to that of the norm before it, added to the residual's.
  const auto through_norm = [&](std::size_t product, DeviceBuffer<T> d_product, std::size_t columns, std::size_t norm,
                                const T* before, DeviceBuffer<float>& mean, DeviceBuffer<float>& rstd) {
    DeviceBuffer<T> d_norm = block.activation(block.count(), "norm gradient");
    linear_backward_input(block.context, d_product.data(), block.value(product), d_norm.data(), block.rows(),
                          block.width, columns);
    block.sum_over_parts(d_norm);
    d_product.reset();
    block.norm_backward(norm, d_norm, before, mean, rstd, d, accumulate);
  };
  DeviceBuffer<T> d_hidden = block.contract_backward(d, kept, accumulate);
  block.recompute_middle(kept);
  if (!kept.norm2 && block.by_rows && !block.sum) {
    pre_norm_expand_backward_by_rows(block, std::move(d_hidden), kept, d, accumulate);
  } else {  // sums over parts are of all rows at once
    block.recompute_norm(kept.norm2, Block<T>::kNorm2, kept.middle.data(), kept.mean2, kept.rstd2);
    block.weights(Block<T>::kExpand, d_hidden, kept.norm2.data(), block.width, block.before(), accumulate);
    kept.norm2.reset();
    through_norm(Block<T>::kExpand, std::move(d_hidden), block.before(), Block<T>::kNorm2, kept.middle.data(),
                 kept.mean2, kept.rstd2);
  }

  DeviceBuffer<T> d_qkv = block.attend_backward(d, kept, accumulate);
  block.recompute_norm(kept.norm1, Block<T>::kNorm1, block.x, kept.mean1, kept.rstd1);
  block.weights(Block<T>::kQkv, d_qkv, kept.norm1.data(), block.width, block.attention.qkv_width(), accumulate);
  kept.norm1.reset();
  through_norm(Block<T>::kQkv, std::move(d_qkv), block.attention.qkv_width(), Block<T>::kNorm1, block.x, kept.mean1,
               kept.rstd1);
}

#define OOMLAB_PRE_NORM(T)                                                                             \
  template DeviceBuffer<T> pre_norm_forward(const Block<T>&, const Keep&, LayerActivations<T>&, bool); \
  template void pre_norm_backward(const Block<T>&, LayerActivations<T>, DeviceBuffer<T>&, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_PRE_NORM)

}  // namespace oomlab::nn
