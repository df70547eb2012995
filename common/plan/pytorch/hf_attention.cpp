// Attention of Hugging Face's modules: transformers/integrations/sdpa_attention.py and the eager_attention_forward() of
// the modeling files.

#include <algorithm>

#include "plan/pytorch/hf_modules.h"

namespace oomlab::fit {

using nn::HfFamily;

AttentionShape HfModules::attention_shape(const Tensor& key, bool causal) const {
  const std::uint64_t tokens = key.count / checked_product(step_.batch, shape_.keys());
  return {step_.batch, shape_.heads, shape_.kv_heads, rows_ / step_.batch, shape_.head_dim, causal, tokens};
}

// The gradients of queries, keys and values come as [B, H, S, d] where the operators before them are not fused; as
// [B, S, H, d], the layout of the products, from a fused kernel. `turned`: rotary positions stand between.
bool HfModules::copied_back(bool turned) const {
  const bool fused = !eager() && (shape_.attention_dropout == 0 || step_.device == TorchDevice::cuda);
  return turned || !fused;
}

// A mask of one byte for each pair of tokens, and what is added to the scores: the same for all sequences.
void HfModules::make_mask() {
  const bool causal = shape_.family != HfFamily::bert && shape_.family != HfFamily::vit;
  const bool windowed = causal && !sees_all(1);
  if (!causal || (!eager() && !windowed && longest_ == 0)) return;
  std::uint64_t keys = longest_ ? longest_ : checked_sum(past_, seq_);
  if (past_ > 0 && windowed) keys = std::min(keys, shape_.window);
  const std::uint64_t pairs = checked_product(step_.batch, checked_product(seq_, keys));
  const Tensor allowed = tape_.make(pairs, DType::boolean);
  mask_ = eager() ? tape_.make(pairs, weights_) : allowed;
}

Tensor HfModules::attend(const Tensor& query, const Tensor& key, const Tensor& value, bool causal, bool masked,
                         Tensor& weights) {
  if (eager()) return attend_eager(query, key, value, masked, weights);
  const AttentionShape shape = attention_shape(key, causal);
  const std::uint64_t groups = masked ? shape.groups() : 1;
  const Tensor keys = torch_.repeat(key, groups);
  const Tensor values = torch_.repeat(value, groups);
  const Tensor output =
      torch_.attention(query, keys, values, masked ? mask_ : Tensor{}, shape, shape_.attention_dropout);
  // In the layout of the queries, which phi3 has put together anew.
  return shape_.family == HfFamily::phi3 ? torch_.contiguous(output) : output;
}

Tensor HfModules::attend_eager(const Tensor& query, const Tensor& key, const Tensor& value, bool masked,
                               Tensor& weights) {
  const AttentionShape shape = attention_shape(key, false);
  const bool decoder = shape_.gated();
  // One head of keys and values for each of queries; where there are as many, a product makes the copy, but of a cache,
  // which lies as it needs it.
  const bool laid_out = shape.groups() > 1 || caches_;
  // A cache of one head is repeated by a view, and copied within the product only.
  const bool viewed = caches_ && shape_.kv_heads == 1;
  const Tensor keys = viewed ? key : torch_.repeat(key, shape.groups());
  const Tensor values = viewed ? value : torch_.repeat(value, shape.groups());
  {
    const Tensor rows = caches_ && shape_.family == HfFamily::phi3 ? query : torch_.contiguous(query);
    const Tensor columns = viewed ? torch_.repeat(keys, shape.groups()) : laid_out ? keys : torch_.contiguous(keys);
    weights = torch_.bmm(rows, columns, shape.scores());
  }
  weights = torch_.scale(weights);
  if (shape_.scores_capped) weights = capped(std::move(weights));
  if (masked) weights = torch_.add(weights, mask_);
  weights = decoder ? torch_.softmax_fp32(weights) : torch_.softmax(weights);
  if (decoder) weights = torch_.cast(weights, query.dtype);
  if (shape_.family == HfFamily::gpt2) weights = torch_.cast(weights, value.dtype);
  weights = torch_.dropout(weights, shape_.attention_dropout);
  Tensor output;
  {
    const Tensor rows = viewed ? torch_.repeat(values, shape.groups()) : laid_out ? values : torch_.contiguous(values);
    output = torch_.bmm(weights, rows, shape.queries());
  }
  return torch_.contiguous(output);
}

}  // namespace oomlab::fit
