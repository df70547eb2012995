#include "plan/json_values.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "plan/text.h"

namespace oomlab::nn {

namespace {

// What nlohmann's parser calls. That parser keeps its own stack, so a deep text cannot overflow this thread's.
class JsonEvents {
 public:
  using Visit = std::function<void(std::span<const std::string>, JsonValue&)>;
  explicit JsonEvents(const Visit& visit) : visit_(visit) {}

  bool null() { return value({}); }
  bool boolean(bool b) { return value({.kind = JsonValue::Kind::boolean, .boolean = b}); }
  bool number_integer(std::int64_t n) { return number_float(static_cast<double>(n), {}); }  // a negative one
  bool number_unsigned(std::uint64_t n) {
    return value({.kind = JsonValue::Kind::whole, .whole = n, .number = static_cast<double>(n)});
  }
  bool number_float(double n, const std::string&) { return value({.kind = JsonValue::Kind::number, .number = n}); }
  bool string(std::string& s) { return value({.kind = JsonValue::Kind::text, .text = std::move(s)}); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // JSON has none
  bool start_object(std::size_t) { return open(JsonValue::Kind::object); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) { return open(JsonValue::Kind::list); }
  bool end_array() { return close(); }
  bool key(std::string& k) {
    if (!keys_.back().insert(k).second) throw JsonError("has the key " + in_quotes(k) + " twice");
    path_.back() = std::move(k);
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception&) {
    throw JsonError("is not JSON at byte " + std::to_string(byte));
  }

 private:
  bool value(JsonValue v) {
    visit_(path_, v);
    return true;
  }
  bool open(JsonValue::Kind kind) {
    if (path_.size() == kJsonDepth) throw JsonError("is nested deeper than " + std::to_string(kJsonDepth) + " levels");
    value({.kind = kind});
    path_.emplace_back();
    keys_.emplace_back();
    return true;
  }
  bool close() {
    path_.pop_back();
    keys_.pop_back();
    return true;
  }

  const Visit& visit_;
  std::vector<std::string> path_;
  std::vector<std::unordered_set<std::string>> keys_;  // of each list (none) and object that is open
};

}  // namespace

void read_json_values(std::string_view text, const JsonEvents::Visit& visit) {
  // nlohmann's parser takes a null byte for the end of the text, and would not see what is behind it.
  const std::size_t null_byte = text.find('\0');
  if (null_byte != std::string_view::npos) throw JsonError("is not JSON at byte " + std::to_string(null_byte + 1));
  JsonEvents events(visit);
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t most = 80;
  return fmt::format("'{}{}'", one_line(text.substr(0, most)), text.size() > most ? "..." : "");
}

}  // namespace oomlab::nn
