#include "plan/model/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <vector>

#include "plan/json_values.h"
#include "plan/json_writer.h"

namespace oomlab::nn {

namespace {

// Ranks and the like at most.
constexpr std::uint64_t kMostRank = std::uint64_t(1) << 16;
// These change what an adapter computes, or what else is trained: absent, null, false, or an empty list or object.
constexpr std::string_view kUnsupported[] = {"use_dora",
                                             "use_rslora",
                                             "use_qalora",
                                             "use_bdlora",
                                             "lora_bias",
                                             "rank_pattern",
                                             "alpha_pattern",
                                             "modules_to_save",
                                             "layers_to_transform",
                                             "layers_pattern",
                                             "exclude_modules",
                                             "layer_replication",
                                             "target_parameters",
                                             "trainable_token_indices",
                                             "alora_invocation_tokens"};

// The keys of an adapter_config.json that are asked for.
struct Keys {
  std::string name;
  std::map<std::string, JsonValue> values;
  std::vector<std::string> targets;    // where they are a list
  std::map<std::string, bool> filled;  // lists and objects with something in them

  Keys(std::string_view json, std::string file) : name(std::move(file)) {
    try {
      read_json_values(json, [&](std::span<const std::string> path, JsonValue& v) {
        if (path.empty() && v.kind != JsonValue::Kind::object) throw JsonError("is no JSON object");
        if (path.size() >= 2) filled[path[0]] = true;
        if (path.size() == 2 && path[0] == "target_modules") {
          if (v.kind != JsonValue::Kind::text) refuse("target_modules", "must be a list of names");
          targets.push_back(v.text);
        }
        if (path.size() == 1) values[path[0]] = std::move(v);
      });
    } catch (const JsonError& error) {
      throw std::invalid_argument(name + ": " + error.what());
    }
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw std::invalid_argument(name + ": " + key + " " + why);
  }
  const JsonValue* find(const std::string& key) const {
    const auto at = values.find(key);
    return at == values.end() || at->second.kind == JsonValue::Kind::null ? nullptr : &at->second;
  }
  void must_be(const std::string& key, const std::string& word, bool needed) const {
    const JsonValue* const v = find(key);
    if (!v && !needed) return;
    if (!v || v->kind != JsonValue::Kind::text || v->text != word)
      refuse(key, fmt::format("must be \"{}\"; other adapters are not known here", word));
  }
  double number(const std::string& key, double otherwise, double least, double most) const {
    const JsonValue* const v = find(key);
    if (!v) return otherwise;
    const bool is_number = v->kind == JsonValue::Kind::whole || v->kind == JsonValue::Kind::number;
    if (!is_number || !(v->number >= least && v->number <= most))
      refuse(key, fmt::format("must be a number from {} to {}", least, most));
    return v->number;
  }
};

// peft's names are ends of paths: c_proj is that of attention and that of the MLP.
std::string targets_of(const Keys& keys, const TransformerSpec& spec) {
  const JsonValue* const v = keys.find("target_modules");
  if (v && v->kind == JsonValue::Kind::text) {
    if (v->text != "all-linear") keys.refuse("target_modules", "must be a list of names, or \"all-linear\"");
    return "all";
  }
  if (!v || v->kind != JsonValue::Kind::list || keys.targets.empty())
    keys.refuse("target_modules", "must be a list of names");
  std::string targets;
  std::vector<bool> used(keys.targets.size());
  for (const AdapterSlot& slot : all_adapter_slots(spec)) {
    const std::string path = std::string(".") + slot.path;
    bool chosen = false;
    for (std::size_t i = 0; i < keys.targets.size() && *slot.path; ++i)
      if (path.ends_with("." + keys.targets[i])) {
        chosen = true;
        used[i] = true;
      }
    if (chosen) targets.append(targets.empty() ? "" : ",").append(slot.name);
  }
  for (std::size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      keys.refuse("target_modules", fmt::format("names {}, which the layers of model '{}' do not have",
                                                in_quotes(keys.targets[i]), spec.name));
  return targets;
}

}  // namespace

AdapterForm parse_adapter_config(std::string_view json, const std::string& name, const TransformerSpec& spec) {
  const Keys keys(json, name);
  keys.must_be("peft_type", "LORA", /*needed=*/true);
  keys.must_be("bias", "none", /*needed=*/false);
  for (const std::string_view unsupported : kUnsupported) {
    const std::string key(unsupported);
    const JsonValue* const v = keys.find(key);
    const bool empty =
        !v || (v->kind == JsonValue::Kind::boolean && !v->boolean) ||
        ((v->kind == JsonValue::Kind::list || v->kind == JsonValue::Kind::object) && !keys.filled.contains(key));
    if (!empty) keys.refuse(key, "is set, which adapters here do not know");
  }
  AdapterForm form;
  const JsonValue* const rank = keys.find("r");
  if (rank && (rank->kind != JsonValue::Kind::whole || rank->whole == 0 || rank->whole > kMostRank))
    keys.refuse("r", fmt::format("must be a whole number from 1 to {}", kMostRank));
  form.rank = rank ? rank->whole : 8;
  form.alpha = static_cast<float>(keys.number("lora_alpha", 8, 0, 1e9));
  form.dropout = static_cast<float>(keys.number("lora_dropout", 0, 0, 0.999));
  form.targets = targets_of(keys, spec);
  return form;
}

std::string adapter_config_of(const TransformerSpec& spec, const AdapterForm& form) {
  JsonWriter json;
  json.begin_object();
  json.member("peft_type", "LORA").member("task_type", "CAUSAL_LM").member("bias", "none");
  json.member("fan_in_fan_out", !spec.llama());
  json.member("r", form.rank).member("lora_alpha", double(form.alpha)).member("lora_dropout", double(form.dropout));
  json.key("target_modules").begin_array();
  for (const AdapterSlot& slot : adapter_slots(spec, form.targets)) {
    if (!*slot.path)
      throw std::invalid_argument(
          fmt::format("an adapter of '{}' alone has no place in peft's files: there c_attn of model '{}' is one matrix",
                      slot.name, spec.name));
    json.value(spec.llama() ? slot.name : slot.path);
  }
  json.end_array();
  json.end_object();
  return json.text();
}

}  // namespace oomlab::nn
