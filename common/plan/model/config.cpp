#include "plan/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "plan/limits.h"
#include "plan/model/config_keys.h"

namespace oomlab::nn {

namespace {

// theta and scaling: at the top level and in rope_scaling, or, in newer files, both in rope_parameters.
Rotary rotary_of(const ConfigKeys& keys) {
  const bool newer = keys.find("rope_parameters") != nullptr;
  if (newer && keys.find("rope_scaling")) keys.refuse("rope_scaling", "and rope_parameters are both given");
  const std::string parent = newer ? "rope_parameters" : "rope_scaling";
  const std::string theta = newer && keys.find(parent + ".rope_theta") ? parent + ".rope_theta" : "rope_theta";
  for (const std::string& key : {std::string("partial_rotary_factor"), parent + ".partial_rotary_factor"})
    if (keys.number_or(key, 1, 0, 1) != 1) keys.refuse(key, "must be 1: every value of a head is turned");
  Rotary rotary;
  rotary.theta = keys.number_or(theta, rotary.theta, 1, 1e12);
  const JsonValue* const object = keys.find(parent);
  if (!object) return rotary;
  if (object->kind != JsonValue::Kind::object) keys.refuse(parent, "must be an object");
  const bool older = !keys.find(parent + ".rope_type") && keys.find(parent + ".type");
  const std::string type_key = parent + (older ? ".type" : ".rope_type");
  if (newer && !keys.find(type_key)) return rotary;
  const std::string& type = keys.one_of(type_key, {"default", "linear", "llama3"});
  if (type == "default") return rotary;
  rotary.scaling = type == "linear" ? Rotary::Scaling::linear : Rotary::Scaling::llama3;
  rotary.factor = keys.number(parent + ".factor", 1, 1e6);
  if (type == "linear") return rotary;
  rotary.low = keys.number(parent + ".low_freq_factor", 1e-3, 1e6);
  rotary.high = keys.number(parent + ".high_freq_factor", 1e-3, 1e6);
  if (rotary.high <= rotary.low) keys.refuse(parent + ".high_freq_factor", "must be above low_freq_factor");
  rotary.original_positions = keys.whole(parent + ".original_max_position_embeddings", kMostOf);
  return rotary;
}

// "'awq', 4 bits": what quantization_config says of the weights; empty where there is none.
std::string stored_as(const ConfigKeys& keys) {
  const std::string parent = "quantization_config";
  const JsonValue* const object = keys.find(parent);
  if (!object) return "";
  if (object->kind != JsonValue::Kind::object) keys.refuse(parent, "must be an object");
  const auto is_true = [&](const char* key) {
    const JsonValue* const v = keys.find(parent + key);
    return v && v->kind == JsonValue::Kind::boolean && v->boolean;
  };
  const JsonValue* const method = keys.find(parent + ".quant_method");
  const JsonValue* const bits = keys.find(parent + ".bits");
  std::string words = method && method->kind == JsonValue::Kind::text ? in_quotes(method->text) : "without a method";
  if (bits && bits->kind == JsonValue::Kind::whole)
    words += fmt::format(", {} bits", bits->whole);
  else if (is_true(".load_in_4bit") || is_true(".load_in_8bit"))
    words += is_true(".load_in_4bit") ? ", 4 bits" : ", 8 bits";
  return words;
}

// The longest sequence for which the model is what it is without its window.
std::uint64_t positions_of(const ConfigKeys& keys, const std::string& type) {
  const std::uint64_t positions = keys.whole("max_position_embeddings", kMostOf);
  const bool windowed = type == "mistral" || (type == "qwen2" && keys.flag("use_sliding_window", false));
  if (!windowed || keys.has_null("sliding_window")) return positions;
  return std::min(positions, keys.whole_or("sliding_window", 4096));
}

void check_heads(const ConfigKeys& keys, const TransformerSpec& spec) {
  if (spec.width % spec.heads != 0)
    keys.refuse("num_attention_heads", fmt::format("{} does not divide hidden_size {}", spec.heads, spec.width));
  if (spec.heads % spec.keys() != 0)
    keys.refuse("num_key_value_heads",
                fmt::format("{} does not divide num_attention_heads {}", spec.keys(), spec.heads));
  if (keys.whole_or("head_dim", spec.depth()) != spec.depth())
    keys.refuse("head_dim", fmt::format("must be hidden_size / num_attention_heads, {}", spec.depth()));
  if (spec.depth() % 2 != 0 || spec.depth() > kRotaryDepth)
    keys.refuse("num_attention_heads", fmt::format("makes heads of {} values; rotary positions need an even number, at "
                                                   "most {}",
                                                   spec.depth(), kRotaryDepth));
}

}  // namespace

TransformerSpec parse_model_config(std::string_view json, const std::string& name) {
  const ConfigKeys keys(json, name);
  const std::string& type = keys.one_of("model_type", {"llama", "mistral", "qwen2"});
  TransformerSpec spec;
  spec.name = name;
  spec.style = TransformerSpec::Style::llama;
  spec.layers = keys.whole("num_hidden_layers", kMostLayers);
  spec.heads = keys.whole("num_attention_heads", kMostOf);
  spec.width = keys.whole("hidden_size", kMostOf);
  spec.vocabulary = keys.whole("vocab_size", kMostOf);
  spec.positions = positions_of(keys, type);
  spec.kv_heads = keys.whole_or("num_key_value_heads", spec.heads);
  spec.mlp = keys.whole("intermediate_size", kMostOf);
  spec.tied = keys.flag("tie_word_embeddings", false);
  spec.qkv_bias = type == "qwen2";
  spec.epsilon = static_cast<float>(keys.number_or("rms_norm_eps", 1e-6, 1e-12, 1));
  spec.rotary = rotary_of(keys);
  spec.stored_as = stored_as(keys);
  if (keys.find("hidden_act")) (void)keys.one_of("hidden_act", {"silu"});
  if (type == "llama" && keys.flag("attention_bias", false))
    keys.refuse("attention_bias", "must be false: it would give the output projection a bias, too");
  if (keys.flag("mlp_bias", false)) keys.refuse("mlp_bias", "must be false");
  check_heads(keys, spec);
  try {
    (void)tensor_bytes(spec, sizeof(float));
  } catch (const std::length_error&) {
    throw std::invalid_argument(name + ": the model has more parameters than 64 bits of bytes can hold");
  }
  return spec;
}

std::string model_config_of(const TransformerSpec& spec) {
  if (!spec.llama()) throw std::invalid_argument("a config.json can be written for models of llama's style only");
  const Rotary& r = spec.rotary;
  std::string scaling = "null";
  if (r.scaling == Rotary::Scaling::linear)
    scaling = fmt::format(R"({{"rope_type": "linear", "factor": {}}})", r.factor);
  if (r.scaling == Rotary::Scaling::llama3)
    scaling = fmt::format(R"({{"rope_type": "llama3", "factor": {}, "low_freq_factor": {}, "high_freq_factor": {}, )"
                          R"("original_max_position_embeddings": {}}})",
                          r.factor, r.low, r.high, r.original_positions);
  const bool qwen = spec.qkv_bias;
  return fmt::format(R"({{
  "architectures": ["{}ForCausalLM"],
  "model_type": "{}",
  "hidden_act": "silu",
  "hidden_size": {},
  "intermediate_size": {},
  "num_hidden_layers": {},
  "num_attention_heads": {},
  "num_key_value_heads": {},
  "vocab_size": {},
  "max_position_embeddings": {},
  "rms_norm_eps": {},
  "rope_theta": {},
  "rope_scaling": {},
  "tie_word_embeddings": {}
}}
)",
                     qwen ? "Qwen2" : "Llama", qwen ? "qwen2" : "llama", spec.width, spec.hidden(), spec.layers,
                     spec.heads, spec.keys(), spec.vocabulary, spec.positions, spec.epsilon, r.theta, scaling,
                     spec.tied);
}

}  // namespace oomlab::nn
