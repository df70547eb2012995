#include "plan/model/huggingface.h"

#include <utility>

namespace oomlab::nn {

namespace {

// The parameters in the order of the modules.
class Lister {
 public:
  explicit Lister(const HfShape& shape) : s_(shape) {}

  std::vector<HfTensor> list() {
    switch (s_.family) {
      case HfFamily::gpt2: gpt2(); break;
      case HfFamily::bert: bert(); break;
      case HfFamily::vit: vit(); break;
      default: decoder(); break;
    }
    return std::move(all_);
  }

 private:
  void vector(const std::string& name, std::uint64_t count) { all_.push_back({name, layer_, 1, count, false}); }
  void embedding(const char* name, std::uint64_t rows) { all_.push_back({name, layer_, rows, s_.width, false}); }
  void linear(const std::string& name, std::uint64_t in, std::uint64_t out, bool bias) {
    all_.push_back({name + ".weight", layer_, out, in, true});
    if (bias) vector(name + ".bias", out);
  }
  void layer_norm(const std::string& name) {
    vector(name + ".weight", s_.width);
    vector(name + ".bias", s_.width);
  }

  void decoder() {
    const std::uint64_t c = s_.width, q = s_.queries(), k = s_.keys(), f = s_.mlp;
    embedding("embed_tokens.weight", s_.vocabulary);
    for (layer_ = 1; layer_ <= s_.layers; ++layer_) {
      if (s_.family == HfFamily::phi3) {
        linear("o_proj", q, c, false);
        linear("qkv_proj", c, checked_sum({q, k, k}), false);
        linear("gate_up_proj", c, checked_product(f, 2), false);
        linear("down_proj", f, c, false);
      } else {
        linear("q_proj", c, q, s_.qkv_bias);
        linear("k_proj", c, k, s_.qkv_bias);
        linear("v_proj", c, k, s_.qkv_bias);
        linear("o_proj", q, c, s_.output_bias);
        if (s_.head_norms()) vector("q_norm.weight", s_.head_dim);
        if (s_.head_norms()) vector("k_norm.weight", s_.head_dim);
        mlp();
      }
      vector("input_layernorm.weight", c);
      vector("post_attention_layernorm.weight", c);
      if (s_.gemma()) vector("pre_feedforward_layernorm.weight", c);
      if (s_.gemma()) vector("post_feedforward_layernorm.weight", c);
    }
    layer_ = 0;
    vector("norm.weight", c);
    if (!s_.tied) linear("lm_head", c, s_.vocabulary, false);
  }

  void mlp() {
    const std::uint64_t c = s_.width, f = s_.mlp, e = s_.experts;
    if (e == 0) {
      linear("gate_proj", c, f, s_.mlp_bias);
      linear("up_proj", c, f, s_.mlp_bias);
      linear("down_proj", f, c, s_.mlp_bias);
      return;
    }
    // Parameters of [experts, out, in] and a router's of [experts, in], none of which is a Linear's.
    all_.push_back({"gate.weight", layer_, e, c, false});
    all_.push_back({"experts.gate_up_proj", layer_, e, checked_product(checked_product(f, 2), c), false});
    all_.push_back({"experts.down_proj", layer_, e, checked_product(c, f), false});
  }

  void gpt2() {
    const std::uint64_t c = s_.width;
    embedding("wte.weight", s_.vocabulary);
    embedding("wpe.weight", s_.positions);
    for (layer_ = 1; layer_ <= s_.layers; ++layer_) {
      layer_norm("ln_1");
      linear("c_attn", c, checked_product(c, 3), true);
      linear("attn.c_proj", c, c, true);
      layer_norm("ln_2");
      linear("c_fc", c, s_.mlp, true);
      linear("mlp.c_proj", s_.mlp, c, true);
    }
    layer_ = 0;
    layer_norm("ln_f");
    if (!s_.tied) linear("lm_head", c, s_.vocabulary, false);
  }

  void encoder_layer() {
    linear("query", s_.width, s_.width, s_.qkv_bias);
    linear("key", s_.width, s_.width, s_.qkv_bias);
    linear("value", s_.width, s_.width, s_.qkv_bias);
    linear("attention.output.dense", s_.width, s_.width, true);
    if (s_.family == HfFamily::bert) layer_norm("attention.output.LayerNorm");
    linear("intermediate.dense", s_.width, s_.mlp, true);
    linear("output.dense", s_.mlp, s_.width, true);
    if (s_.family == HfFamily::bert) layer_norm("output.LayerNorm");
    if (s_.family == HfFamily::vit) layer_norm("layernorm_before");
    if (s_.family == HfFamily::vit) layer_norm("layernorm_after");
  }
  void bert() {
    embedding("word_embeddings.weight", s_.vocabulary);
    embedding("position_embeddings.weight", s_.positions);
    embedding("token_type_embeddings.weight", s_.types);
    layer_norm("embeddings.LayerNorm");
    for (layer_ = 1; layer_ <= s_.layers; ++layer_) encoder_layer();
    layer_ = 0;
    vector("predictions.bias", s_.vocabulary);
    linear("transform.dense", s_.width, s_.width, true);
    layer_norm("transform.LayerNorm");
    if (!s_.tied) linear("decoder", s_.width, s_.vocabulary, false);
  }
  void vit() {
    vector("cls_token", s_.width);
    embedding("position_embeddings", s_.positions);
    linear("projection", checked_product(s_.channels, checked_product(s_.patch, s_.patch)), s_.width, true);
    for (layer_ = 1; layer_ <= s_.layers; ++layer_) encoder_layer();
    layer_ = 0;
    layer_norm("layernorm");
    linear("classifier", s_.width, s_.labels, true);
  }

  const HfShape& s_;
  std::uint64_t layer_ = 0;
  std::vector<HfTensor> all_;
};

}  // namespace

const char* name_of(HfFamily family) {
  static constexpr const char* kNames[] = {"llama", "mistral", "qwen2",     "qwen3", "gemma2", "gemma3",
                                           "phi3",  "mixtral", "qwen3_moe", "gpt2",  "bert",   "vit"};
  return kNames[static_cast<std::size_t>(family)];
}

std::vector<HfTensor> parameters_of(const HfShape& shape) { return Lister(shape).list(); }

std::uint64_t parameter_count(const HfShape& shape) {
  std::uint64_t sum = 0;
  for (const HfTensor& tensor : parameters_of(shape)) sum = checked_sum(sum, tensor.count());
  return sum;
}

}  // namespace oomlab::nn
