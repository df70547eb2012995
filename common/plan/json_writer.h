#pragma once
// Writes JSON text, in the order in which it is told. Not a JSON library: those build a tree first, and free it in
// destructors that allocate, so that a program out of host memory is terminated instead of told. This one only appends
// to a string, and survives the fault sweep.

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "plan/text.h"

namespace oomlab {

class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  /// The key of the next value or container.
  JsonWriter& key(std::string_view name) {
    next();
    text_ += json_string(name);
    text_ += ": ";
    after_key_ = true;
    return *this;
  }

  JsonWriter& value(std::string_view text) {
    next();
    text_ += json_string(text);
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool truth) { return raw(truth ? "true" : "false"); }
  JsonWriter& value(std::integral auto number) { return raw(fmt::format("{}", number)); }
  /// JSON knows no infinity and no NaN: they become null.
  JsonWriter& value(double number) { return std::isfinite(number) ? raw(fmt::format("{}", number)) : null(); }
  template <class T>
  JsonWriter& value(const std::optional<T>& maybe) {
    return maybe ? value(*maybe) : null();
  }
  JsonWriter& null() { return raw("null"); }

  template <class T>
  JsonWriter& member(std::string_view name, const T& v) {
    return key(name).value(v);
  }

  /// A member that `write(*maybe)` writes, or null where there is nothing: of a pointer or a std::optional.
  template <class Maybe, std::invocable<decltype(*std::declval<const Maybe&>())> Write>
  JsonWriter& member(std::string_view name, const Maybe& maybe, Write&& write) {
    key(name);
    if (!maybe) return null();
    write(*maybe);
    return *this;
  }

  const std::string& text() const noexcept { return text_; }

 private:
  JsonWriter& open(char bracket) {
    next();
    text_ += bracket;
    ++depth_;
    first_ = true;
    return *this;
  }
  JsonWriter& close(char bracket) {
    --depth_;
    if (!first_) new_line();
    text_ += bracket;
    first_ = false;
    if (depth_ == 0) text_ += '\n';
    return *this;
  }
  JsonWriter& raw(std::string_view token) {
    next();
    text_ += token;
    return *this;
  }
  // What separates the next item from what stands before it.
  void next() {
    if (after_key_) {
      after_key_ = false;
      return;
    }
    if (depth_ == 0) return;
    if (!first_) text_ += ',';
    new_line();
    first_ = false;
  }
  void new_line() {
    text_ += '\n';
    text_.append(2 * depth_, ' ');
  }
  std::string text_;
  std::size_t depth_ = 0;
  bool first_ = true, after_key_ = false;
};

}  // namespace oomlab
