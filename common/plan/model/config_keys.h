#pragma once
// What a config.json says, key by key, with errors that name the file and the key. Part of config.h and of
// huggingface_config.h.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "plan/json_values.h"

namespace oomlab::nn {

inline constexpr std::uint64_t kMostOf = 2'147'483'647;  // of anything: tokens are int
inline constexpr std::uint64_t kMostExperts = 65'536;
inline constexpr std::string_view kObjects[] = {"rope_scaling", "rope_parameters", "quantization_config"};

/// The keys of a config.json, those of the objects that are read as "rope_scaling.factor". Those of text_config stand
/// for the model's.
class ConfigKeys {
 public:
  ConfigKeys(std::string_view json, std::string name) : name_(std::move(name)) {
    try {
      std::map<std::string, JsonValue> nested;
      read_json_values(json, [&](std::span<const std::string> path, JsonValue& v) {
        if (path.empty() && v.kind != JsonValue::Kind::object) throw JsonError("is no JSON object");
        if (path.size() == 2 && path[0] == "id2label") ++labels_;
        if (path.size() == 2 && path[0] == "mlp_only_layers") ++dense_layers_;
        const bool of_text = path.size() > 1 && path[0] == "text_config";
        if (of_text) path = path.subspan(1);
        const bool inside = path.size() == 2 && std::ranges::find(kObjects, path[0]) != std::end(kObjects);
        // A key with a point in it is none of ours, and must not look like one within an object.
        const bool plain = path.size() == 1 && path[0].find('.') == std::string::npos;
        if (inside || plain) (of_text ? nested : values_)[inside ? path[0] + "." + path[1] : path[0]] = std::move(v);
      });
      nested_ = !nested.empty();
      for (auto& [key, value] : nested) values_[key] = std::move(value);
    } catch (const JsonError& error) {
      throw std::invalid_argument(name_ + ": " + error.what());
    }
  }

  // Throws "config.json: KEY why".
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw std::invalid_argument(name_ + ": " + key + " " + why);
  }
  // Null where it is absent, or null.
  const JsonValue* find(const std::string& key) const {
    const auto at = values_.find(key);
    return at == values_.end() || at->second.kind == JsonValue::Kind::null ? nullptr : &at->second;
  }
  bool has_null(const std::string& key) const { return values_.contains(key) && !find(key); }

  std::uint64_t whole(const std::string& key, std::uint64_t most) const {
    const JsonValue& v = needed(key);
    if (v.kind != JsonValue::Kind::whole || v.whole == 0 || v.whole > most)
      refuse(key, fmt::format("must be a whole number from 1 to {}", most));
    return v.whole;
  }
  std::uint64_t whole_or(const std::string& key, std::uint64_t otherwise, std::uint64_t most = kMostOf) const {
    return find(key) ? whole(key, most) : otherwise;
  }
  double number(const std::string& key, double least, double most) const {
    const JsonValue& v = needed(key);
    const bool is_number = v.kind == JsonValue::Kind::whole || v.kind == JsonValue::Kind::number;
    if (!is_number || !(v.number >= least && v.number <= most))
      refuse(key, fmt::format("must be a number from {} to {}", least, most));
    return v.number;
  }
  double number_or(const std::string& key, double otherwise, double least, double most) const {
    return find(key) ? number(key, least, most) : otherwise;
  }
  bool flag(const std::string& key, bool otherwise) const {
    const JsonValue* const v = find(key);
    if (v && v->kind != JsonValue::Kind::boolean) refuse(key, "must be true or false");
    return v ? v->boolean : otherwise;
  }
  const std::string& one_of(const std::string& key, std::initializer_list<const char*> known) const {
    const JsonValue& v = needed(key);
    const bool is_text = v.kind == JsonValue::Kind::text;
    std::string list;
    for (const char* name : known) {
      if (is_text && v.text == name) return v.text;
      list += (list.empty() ? "" : ", ") + std::string(name);
    }
    refuse(key, is_text ? in_quotes(v.text) + " is unknown; known: " + list : "must be one of: " + list);
  }

  /// Whether the language model's keys were in text_config: there is more to this model.
  bool nested() const { return nested_; }
  /// Entries of id2label.
  std::uint64_t labels() const { return labels_; }
  /// Entries of mlp_only_layers.
  std::uint64_t dense_layers() const { return dense_layers_; }

 private:
  const JsonValue& needed(const std::string& key) const {
    const JsonValue* const v = find(key);
    if (!v) refuse(key, "is missing");
    return *v;
  }
  std::string name_;
  bool nested_ = false;
  std::uint64_t labels_ = 0, dense_layers_ = 0;
  std::map<std::string, JsonValue> values_;
};

}  // namespace oomlab::nn
