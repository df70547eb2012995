// The decoders with gated MLPs: transformers' modeling files of llama, mistral, qwen2, qwen3, gemma2, gemma3 and phi3,
// and of mixtral and qwen3_moe what is not an expert's.

#include <algorithm>

#include "plan/pytorch/hf_modules.h"

namespace oomlab::fit {

using nn::HfFamily;

// LlamaRotaryEmbedding.forward(), of gemma3 for both kinds of layers.
void HfModules::angles(DType dtype) {
  // generate() numbers the tokens of each sequence, by their attention mask.
  const std::uint64_t count = checked_product(caches_ ? rows_ : seq_, shape_.turned());
  const Tensor frequencies = tape_.make(count / 2, DType::fp32);
  const Tensor both = tape_.make(count, DType::fp32);
  cos_ = torch_.cast(tape_.make(count, DType::fp32), dtype);
  sin_ = torch_.cast(tape_.make(count, DType::fp32), dtype);
}

// apply_rotary_pos_emb() of one of the two.
Tensor HfModules::rotate(const Tensor& x) {
  const bool parts = shape_.family == HfFamily::phi3;
  const std::uint64_t turned = x.count / shape_.head_dim * shape_.turned();
  const bool whole = turned == x.count;
  const Tensor rotated = parts && !whole ? torch_.slice(x, turned) : x;
  const Tensor passed = parts ? torch_.slice(x, x.count - turned) : Tensor{};
  Tensor sum;
  {
    const Tensor cosines = torch_.mul(rotated, cos_);
    Tensor half;
    {
      const Tensor first = torch_.slice(rotated, turned / 2);
      const Tensor second = torch_.slice(rotated, turned / 2);
      const Tensor negative = torch_.neg(second);
      half = torch_.concatenate(negative, first);
    }
    const Tensor sines = torch_.mul(half, sin_);
    half = {};
    sum = torch_.add(cosines, sines);
  }
  return parts ? torch_.concatenate(sum, passed) : sum;
}

Tensor HfModules::decoder_attention(std::uint64_t layer, const Tensor& hidden, Tensor& weights) {
  const std::uint64_t heads = checked_product(rows_, shape_.heads), kv_heads = checked_product(rows_, shape_.kv_heads);
  const bool masked = eager() || longest_ > 0 || !sees_all(layer);
  const bool copied = copied_back(false) || masked;
  const bool normed = shape_.head_norms() && !shape_.gemma();
  Tensor query, key, value, all;
  if (shape_.family == HfFamily::phi3) {
    all = project(hidden, linear("qkv_proj", layer));
    query = torch_.slice(all, checked_product(rows_, shape_.queries()));
    key = torch_.slice(all, checked_product(rows_, shape_.keys()));
    value = torch_.slice(all, checked_product(rows_, shape_.keys()));
    query = torch_.view(query, true);
    key = torch_.view(key, true);
    value = torch_.view(value, copied);
  } else {
    query = torch_.view(project(hidden, linear("q_proj", layer)), true);
    if (normed) query = norm(query, weight("q_norm.weight", layer), heads);
    key = torch_.view(project(hidden, linear("k_proj", layer)), true);
    if (normed) key = norm(key, weight("k_norm.weight", layer), kv_heads);
    value = torch_.view(project(hidden, linear("v_proj", layer)), copied);
    if (shape_.family == HfFamily::gemma3) query = norm(query, weight("q_norm.weight", layer), heads);
    if (shape_.family == HfFamily::gemma3) key = norm(key, weight("k_norm.weight", layer), kv_heads);
  }
  {
    Tensor turned = rotate(query);
    Tensor turned_keys = rotate(key);
    query = std::move(turned);
    key = std::move(turned_keys);
  }
  if (caches_) into_cache(layer, key, value);
  const Tensor output = attend(query, key, value, true, masked, weights);
  return project(output, linear("o_proj", layer));
}

Tensor HfModules::decoder_mlp(std::uint64_t layer, const Tensor& hidden) {
  if (shape_.experts) return experts(layer, hidden);
  Tensor product;
  if (shape_.family == HfFamily::phi3) {
    const Tensor both = project(hidden, linear("gate_up_proj", layer));
    const std::uint64_t half = both.count / 2;
    const std::vector<Tensor> parts = torch_.split(both, {half, half});
    product = torch_.mul(parts[1], activate(parts[0]));
    return project(product, linear("down_proj", layer));
  }
  {
    Tensor gate = project(hidden, linear("gate_proj", layer));
    const Tensor active = activate(gate);
    gate = {};
    const Tensor up = project(hidden, linear("up_proj", layer));
    product = torch_.mul(active, up);
  }
  return project(product, linear("down_proj", layer));
}

Tensor HfModules::decoder_layer(std::uint64_t layer, Tensor hidden) {
  Tensor residual = hidden;
  Tensor weights;
  hidden = norm(hidden, weight("input_layernorm.weight", layer), rows_);
  hidden = decoder_attention(layer, hidden, weights);
  const bool sandwich = shape_.gemma();
  if (sandwich) hidden = norm(hidden, weight("post_attention_layernorm.weight", layer), rows_);
  hidden = torch_.dropout(hidden, shape_.hidden_dropout);
  hidden = torch_.add(residual, hidden);

  residual = hidden;
  hidden = norm(
      hidden, weight(sandwich ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight", layer), rows_);
  hidden = decoder_mlp(layer, hidden);
  if (sandwich) hidden = norm(hidden, weight("post_feedforward_layernorm.weight", layer), rows_);
  hidden = torch_.dropout(hidden, shape_.hidden_dropout);
  return torch_.add(residual, hidden);
}

// The head's matrix.
Parameter& HfModules::head() {
  if (by_name_.contains("lm_head.weight")) return weight("lm_head.weight");
  return weight(shape_.family == HfFamily::gpt2 ? "wte.weight" : "embed_tokens.weight");
}

Tensor HfModules::logits_of(const Tensor& hidden) {
  if (split_ == 1 || shape_.tied) return torch_.linear(hidden, head(), nullptr, shape_.width, shape_.vocabulary);
  const Tensor part =
      torch_.linear(torch_.summed_back(hidden), head(), nullptr, shape_.width, shape_.vocabulary / split_);
  return torch_.gathered(part, split_);
}

// Of hidden states to a loss: the head, logits in FP32, and for decoders labels moved by one.
Tensor HfModules::language_loss(Tensor hidden, bool shifted) {
  tape_.memory().moment("loss");
  if (step_.loss == HfLoss::chunked) return chunked_loss(hidden);
  if (step_.loss == HfLoss::liger) {
    const Tensor padded = tape_.make(checked_sum(rows_, step_.batch), DType::int64);
    const Tensor targets = tape_.make(rows_, DType::int64);
    return torch_.fused_cross_entropy(hidden, head(), shape_.width, shape_.vocabulary);
  }
  Tensor logits = logits_of(hidden);
  if (shape_.logits_capped) logits = capped(logits);
  const Tensor wide = torch_.cast(logits, DType::fp32);
  Tensor padded, targets = labels_;
  if (shifted) {
    padded = tape_.make(checked_sum(rows_, step_.batch), DType::int64);
    targets = tape_.make(rows_, DType::int64);
  }
  return torch_.cross_entropy(wide, targets);
}

// The same in eight chunks of tokens. What a chunk makes is dropped, and made again when its gradient is asked for.
Tensor HfModules::chunked_loss(const Tensor& hidden) {
  const std::uint64_t chunks = std::min<std::uint64_t>(8, rows_);
  const std::uint64_t rows = (rows_ + chunks - 1) / chunks;
  const Tensor targets = tape_.make(rows_, DType::int64);
  Tensor sum;
  for (std::uint64_t first = 0; first < rows_; first += rows) {
    const Tensor part = torch_.slice(hidden, checked_product(std::min(rows, rows_ - first), shape_.width));
    const Tensor loss = tape_.checkpoint(
        part,
        [this, targets](Tensor x) {
          Tensor logits = torch_.linear(x, head(), nullptr, shape_.width, shape_.vocabulary);
          if (shape_.logits_capped) logits = capped(logits);
          const Tensor wide = torch_.cast(logits, DType::fp32);
          return torch_.cross_entropy(wide, targets);
        },
        [this](const std::function<void()>& run) { run_then(run, [this] { torch_.end_autocast(); }); });
    sum = sum ? torch_.add(sum, loss) : loss;
  }
  return sum;
}

Tensor HfModules::decoder_hidden() {
  Tensor hidden = torch_.embedding(rows_, weight("embed_tokens.weight"), shape_.width, tokens_);
  if (shape_.gemma()) hidden = torch_.scale(hidden);
  hidden = with_gradient(std::move(hidden));
  const Tensor held = caches_ ? hidden : Tensor{};  // inputs_embeds, a name as long as the function runs
  const Tensor positions = tape_.make(caches_ ? rows_ : seq_, DType::int64);
  make_mask();
  const std::uint64_t kinds = shape_.family == HfFamily::gemma3 ? 2 : 1;
  Tensor other_angles[2];
  if (kinds == 2) {
    angles(hidden.dtype);
    other_angles[0] = cos_;
    other_angles[1] = sin_;
  }
  angles(hidden.dtype);
  hidden = each_layer(std::move(hidden));
  return norm(hidden, weight("norm.weight"), rows_);
}

Tensor HfModules::decoder_loss() { return language_loss(decoder_hidden(), true); }

}  // namespace oomlab::fit
