#include "plan/model/huggingface_config.h"

#include "plan/limits.h"
#include "plan/model/config_keys.h"

namespace oomlab::nn {

namespace {

HfFamily family_of(const ConfigKeys& keys) {
  const std::string& type =
      keys.one_of("model_type", {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3_text", "phi3",
                                 "mixtral", "qwen3_moe", "gpt2", "bert", "vit"});
  for (const HfFamily family :
       {HfFamily::llama, HfFamily::mistral, HfFamily::qwen2, HfFamily::qwen3, HfFamily::gemma2, HfFamily::phi3,
        HfFamily::mixtral, HfFamily::qwen3_moe, HfFamily::gpt2, HfFamily::bert, HfFamily::vit})
    if (type == name_of(family)) return family;
  return HfFamily::gemma3;
}

double chance(const ConfigKeys& keys, const char* key, double otherwise) {
  return keys.number_or(key, otherwise, 0, 1);
}

void read_gpt2(const ConfigKeys& keys, HfShape& s) {
  s.layers = keys.whole("n_layer", kMostLayers);
  s.heads = keys.whole("n_head", kMostOf);
  s.width = keys.whole("n_embd", kMostOf);
  s.mlp = keys.whole_or("n_inner", checked_product(s.width, 4));
  s.vocabulary = keys.whole("vocab_size", kMostOf);
  s.positions = keys.whole_or("n_positions", 1024);
  s.tied = keys.flag("tie_word_embeddings", true);
  s.qkv_bias = s.output_bias = s.mlp_bias = true;
  s.activation = HfActivation::gelu_new;
  if (keys.find("activation_function")) (void)keys.one_of("activation_function", {"gelu_new"});
  s.embedding_dropout = chance(keys, "embd_pdrop", 0.1);
  s.attention_dropout = chance(keys, "attn_pdrop", 0.1);
  s.hidden_dropout = chance(keys, "resid_pdrop", 0.1);
}

void read_encoder(const ConfigKeys& keys, HfShape& s) {
  s.layers = keys.whole_or("num_hidden_layers", 12, kMostLayers);
  s.heads = keys.whole_or("num_attention_heads", 12);
  s.width = keys.whole_or("hidden_size", 768);
  s.mlp = keys.whole_or("intermediate_size", 3072);
  s.activation = HfActivation::gelu;
  if (keys.find("hidden_act")) (void)keys.one_of("hidden_act", {"gelu"});
  s.qkv_bias = s.output_bias = s.mlp_bias = true;
  const double otherwise = s.family == HfFamily::bert ? 0.1 : 0;
  s.embedding_dropout = s.hidden_dropout = chance(keys, "hidden_dropout_prob", otherwise);
  s.attention_dropout = chance(keys, "attention_probs_dropout_prob", otherwise);
  if (s.family == HfFamily::bert) {
    s.vocabulary = keys.whole("vocab_size", kMostOf);
    s.positions = keys.whole_or("max_position_embeddings", 512);
    s.types = keys.whole_or("type_vocab_size", 2);
    s.tied = keys.flag("tie_word_embeddings", true);
    return;
  }
  s.qkv_bias = keys.flag("qkv_bias", true);
  s.patch = keys.whole_or("patch_size", 16);
  s.channels = keys.whole_or("num_channels", 3);
  s.labels = keys.labels() ? keys.labels() : 2;
  const std::uint64_t side = keys.whole_or("image_size", 224) / s.patch;
  if (side == 0) keys.refuse("patch_size", "must not be larger than image_size");
  s.positions = checked_sum(checked_product(side, side), 1);
}

// Of mixtral and qwen3_moe: all layers have experts.
void read_experts(const ConfigKeys& keys, HfShape& s) {
  const bool mixtral = s.family == HfFamily::mixtral;
  const char* const key = keys.find("num_local_experts") ? "num_local_experts" : "num_experts";
  s.experts = keys.whole_or(key, mixtral ? 8 : 128, kMostExperts);
  s.active = keys.whole_or("num_experts_per_tok", mixtral ? 2 : 8);
  if (s.active > s.experts)
    keys.refuse("num_experts_per_tok", fmt::format("{} is more than {} {}", s.active, key, s.experts));
  if (mixtral) return;
  if (keys.whole_or("decoder_sparse_step", 1) != 1)
    keys.refuse("decoder_sparse_step", "must be 1: only experts in all layers are known");
  if (keys.dense_layers() > 0) keys.refuse("mlp_only_layers", "must be empty: only experts in all layers are known");
}

void read_decoder(const ConfigKeys& keys, HfShape& s) {
  const bool gemma3 = s.family == HfFamily::gemma3;
  s.layers = keys.whole("num_hidden_layers", kMostLayers);
  s.width = keys.whole("hidden_size", kMostOf);
  s.mlp = keys.whole(s.family == HfFamily::qwen3_moe ? "moe_intermediate_size" : "intermediate_size", kMostOf);
  // Files of gemma3 leave out what is Gemma3TextConfig's.
  s.heads = gemma3 ? keys.whole_or("num_attention_heads", 8) : keys.whole("num_attention_heads", kMostOf);
  s.kv_heads = keys.whole_or("num_key_value_heads", gemma3 ? 4 : s.heads);
  s.vocabulary = gemma3 ? keys.whole_or("vocab_size", 262208) : keys.whole("vocab_size", kMostOf);
  s.positions =
      gemma3 ? keys.whole_or("max_position_embeddings", 131072) : keys.whole("max_position_embeddings", kMostOf);
  s.tied = keys.flag("tie_word_embeddings", s.gemma());
  const std::uint64_t usual = s.gemma() ? 256 : s.family == HfFamily::qwen3 ? 128 : s.width / s.heads;
  s.head_dim = keys.whole_or("head_dim", usual);
  const bool biased = keys.flag("attention_bias", false);
  s.qkv_bias = s.family == HfFamily::qwen2 || biased;
  s.output_bias = s.family != HfFamily::qwen2 && biased;
  s.mlp_bias = keys.flag("mlp_bias", false);
  s.activation = s.gemma() ? HfActivation::gelu : HfActivation::silu;
  const char* const acts = s.gemma() && keys.find("hidden_activation") ? "hidden_activation" : "hidden_act";
  if (keys.find(acts))
    (void)keys.one_of(acts, s.gemma() ? std::initializer_list<const char*>{"gelu_pytorch_tanh", "gelu"}
                                      : std::initializer_list<const char*>{"silu"});
  if (s.family == HfFamily::phi3) {
    const double part = keys.number_or("partial_rotary_factor", 1, 0.01, 1);
    s.rotary_dim = static_cast<std::uint64_t>(double(s.head_dim) * part);
    s.hidden_dropout = chance(keys, "resid_pdrop", 0);
  }
  if (s.family == HfFamily::mixtral || s.family == HfFamily::qwen3_moe) read_experts(keys, s);
  s.attention_dropout = chance(keys, "attention_dropout", 0);
  const bool windowed = s.family == HfFamily::mistral || s.family == HfFamily::mixtral || s.family == HfFamily::phi3 ||
                        s.gemma() || keys.flag("use_sliding_window", false);
  const bool named = keys.find("sliding_window") != nullptr;
  const bool without = s.family == HfFamily::phi3 || s.family == HfFamily::mixtral;
  const bool by_default = !keys.has_null("sliding_window") && !without;
  if (windowed && (named || by_default)) s.window = keys.whole_or("sliding_window", 4096);
  if (s.gemma()) s.full_every = keys.whole_or("sliding_window_pattern", gemma3 ? 6 : 2);
  const auto capped = [&](const char* key, bool otherwise) {
    return keys.find(key) != nullptr || (otherwise && !keys.has_null(key));
  };
  s.scores_capped = s.gemma() && capped("attn_logit_softcapping", s.family == HfFamily::gemma2);
  s.logits_capped = s.gemma() && capped("final_logit_softcapping", s.family == HfFamily::gemma2);
  if (s.kv_heads > s.heads || s.heads % s.kv_heads != 0)
    keys.refuse("num_key_value_heads", fmt::format("{} does not divide num_attention_heads {}", s.kv_heads, s.heads));
}

}  // namespace

HfShape parse_hf_config(std::string_view json, const std::string& name) {
  const ConfigKeys keys(json, name);
  HfShape s;
  s.name = name;
  s.family = family_of(keys);
  if (s.family == HfFamily::gpt2)
    read_gpt2(keys, s);
  else if (s.family == HfFamily::bert || s.family == HfFamily::vit)
    read_encoder(keys, s);
  else
    read_decoder(keys, s);
  if (s.kv_heads == 0) s.kv_heads = s.heads;
  if (s.head_dim == 0) {
    if (s.width % s.heads != 0)
      keys.refuse("num_attention_heads", fmt::format("{} does not divide a width of {}", s.heads, s.width));
    s.head_dim = s.width / s.heads;
  }
  try {
    (void)checked_product(parameter_count(s), sizeof(float));
  } catch (const std::length_error&) {
    throw std::invalid_argument(name + ": the model has more parameters than 64 bits of bytes can hold");
  }
  return s;
}

HfShape hf_shape_of(const TransformerSpec& spec) {
  HfShape s{.name = spec.name,
            .layers = spec.layers,
            .width = spec.width,
            .heads = spec.heads,
            .kv_heads = spec.keys(),
            .head_dim = spec.depth(),
            .mlp = spec.hidden(),
            .vocabulary = spec.vocabulary,
            .positions = spec.positions,
            .tied = spec.tied};
  if (spec.llama()) {
    s.family = spec.qkv_bias ? HfFamily::qwen2 : HfFamily::llama;
    s.qkv_bias = spec.qkv_bias;
    return s;
  }
  s.family = spec.bert() ? HfFamily::bert : HfFamily::gpt2;
  s.activation = spec.bert() ? HfActivation::gelu : HfActivation::gelu_new;
  s.qkv_bias = s.output_bias = s.mlp_bias = true;
  s.types = spec.bert() ? 2 : 0;
  s.embedding_dropout = s.attention_dropout = s.hidden_dropout = 0.1;  // BertConfig's and GPT2Config's
  return s;
}

}  // namespace oomlab::nn
