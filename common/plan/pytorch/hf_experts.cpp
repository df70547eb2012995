// Mixtures of experts: the sparse blocks of transformers' modeling files of mixtral and qwen3_moe, with
// grouped_mm_experts_forward() of integrations/moe.py, which is what they run where nobody says otherwise. Its products
// are of all pairs of a token and an expert at once, in the order of the experts: bytes do not depend on which ones the
// router chooses.

#include "plan/pytorch/hf_modules.h"

namespace oomlab::fit {

using nn::HfFamily;

// Weights are divided by their sum, which a qwen3_moe may leave out (norm_topk_prob): a few numbers a token.
HfModules::Routed HfModules::route(std::uint64_t layer, const Tensor& hidden) {
  const std::uint64_t pairs = checked_product(rows_, shape_.active);
  Routed routed;
  routed.logits = torch_.linear(hidden, weight("gate.weight", layer), nullptr, shape_.width, shape_.experts);
  const Tensor probabilities = torch_.softmax_fp32(routed.logits);
  routed.chosen = tape_.make(pairs, DType::int64);
  routed.weights = torch_.select(probabilities, routed.chosen, pairs);
  const Tensor sums = torch_.sum(routed.weights, rows_);
  routed.weights = torch_.mul(routed.weights, sums);
  if (shape_.family == HfFamily::qwen3_moe) routed.weights = torch_.cast(routed.weights, routed.logits.dtype);
  return routed;
}

Tensor HfModules::experts(std::uint64_t layer, const Tensor& hidden) {
  const Routed routed = route(layer, hidden);
  // generate() on a GPU, after the prompt (_optimize_model_for_decode()).
  if (caches_ && past_ > 0 && step_.device == TorchDevice::cuda) return batched_experts(hidden, routed);
  const std::uint64_t pairs = checked_product(rows_, shape_.active), width = shape_.width, inner = shape_.mlp;
  const Tensor sorted = tape_.make(pairs, DType::int64);
  const Tensor order = tape_.make(pairs, DType::int64);
  Tensor tokens = tape_.make(pairs, DType::int64);
  const Tensor selected = torch_.select(hidden, tokens, checked_product(pairs, width));
  tokens = {};
  const Tensor weights = torch_.select(routed.weights, order, pairs);
  Tensor out = torch_.grouped(selected, weight("experts.gate_up_proj", layer), width, checked_product(inner, 2));
  {
    const std::uint64_t half = out.count / 2;
    const std::vector<Tensor> parts = torch_.split(out, {half, half});
    const Tensor active = activate(parts[0]);
    Tensor product = torch_.mul(active, parts[1]);
    out = std::move(product);
  }
  {
    Tensor product = torch_.grouped(out, weight("experts.down_proj", layer), inner, width);
    out = std::move(product);
  }
  Tensor weighted = torch_.mul(out, weights);
  const Tensor back = tape_.make(pairs, DType::int64);
  {
    Tensor in_order = torch_.select(weighted, back, weighted.count);
    weighted = std::move(in_order);
  }
  const Tensor sum = torch_.sum(weighted, checked_product(rows_, width));
  return torch_.cast(sum, hidden.dtype);
}

// batched_mm_experts_forward(), without gradients: a copy of an expert's weights for each pair. From reading.
Tensor HfModules::batched_experts(const Tensor& hidden, const Routed& routed) {
  const std::uint64_t pairs = checked_product(rows_, shape_.active), width = shape_.width, inner = shape_.mlp;
  const std::uint64_t matrix = checked_product(pairs, checked_product(width, inner));
  const Tensor selected = tape_.make(checked_product(pairs, width), hidden.dtype);
  Tensor copies = tape_.make(checked_product(matrix, 2), weights_);
  Tensor out = tape_.make(checked_product(pairs, checked_product(inner, 2)), weights_);
  {
    const Tensor active = tape_.make(checked_product(pairs, inner), weights_);
    Tensor product = tape_.make(checked_product(pairs, inner), weights_);
    out = std::move(product);
  }
  {
    Tensor others = tape_.make(matrix, weights_);  // of the products down, while the first copies are there
    copies = std::move(others);
  }
  {
    Tensor product = tape_.make(checked_product(pairs, width), weights_);
    out = std::move(product);
  }
  const Tensor weighted = torch_.mul(out, routed.weights);
  const Tensor sum = torch_.sum(weighted, checked_product(rows_, width));
  return torch_.cast(sum, hidden.dtype);
}

}  // namespace oomlab::fit
