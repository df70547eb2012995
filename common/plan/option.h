#pragma once
// A chapter's own options, beside those that every chapter has. A chapter defines each as a constant, names it with its
// default in its Defaults, and asks its Config for the value. The command line and its checks, --help, the line above
// the table and the result file follow from that.

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace oomlab {

/// The user asked for something that cannot be: one line that says what, and what is allowed. Exit code 64.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// T is std::size_t for a whole number, std::string for a word or a file's name, bool for a flag.
template <class T>
struct Option;

template <>
struct Option<std::size_t> {
  const char* name;  ///< "micro-batch": --micro-batch on the command line, "micro_batch" in result files
  const char* help;
  std::size_t least = 1, most = std::size_t(-1);  ///< what is allowed
};
template <>
struct Option<std::string> {
  const char* name;
  const char* help;
  const char* words = "";     ///< what is allowed: "fp32 fp16 bf16"; empty: any text
  bool names_model = false;   ///< it says which model, in place of --model
  const char* formerly = "";  ///< the name that it had: whoever writes that is told this one
};
template <>
struct Option<bool> {
  const char* name;
  const char* help;
};

/// An option that a chapter has, as it stands in its Defaults: with a default, or without one. (No std::string, like
/// all of Defaults.)
struct ChapterOption {
  enum class Kind { number, word, flag };

  constexpr ChapterOption() = default;
  constexpr ChapterOption(const Option<std::size_t>& o)
      : kind(Kind::number), name(o.name), help(o.help), least(o.least), most(o.most) {}
  constexpr ChapterOption(const Option<std::size_t>& o, std::size_t value) : ChapterOption(o) {
    has_default = true, number = value;
  }
  constexpr ChapterOption(const Option<std::string>& o)
      : kind(Kind::word),
        name(o.name),
        help(o.help),
        words(o.words),
        names_model(o.names_model),
        formerly(o.formerly) {}
  constexpr ChapterOption(const Option<std::string>& o, const char* value) : ChapterOption(o) {
    has_default = true, word = value;
  }
  constexpr ChapterOption(const Option<bool>& o) : kind(Kind::flag), name(o.name), help(o.help) {}

  Kind kind = Kind::flag;
  const char *name = "", *help = "", *words = "";
  bool names_model = false;
  const char* formerly = "";
  std::size_t least = 0, most = 0;
  bool has_default = false;
  std::size_t number = 0;
  const char* word = "";
};

/// At most 40 options of a chapter. Throws std::length_error for more.
class ChapterOptions {
 public:
  constexpr ChapterOptions() = default;
  constexpr ChapterOptions(std::initializer_list<ChapterOption> list) {
    if (list.size() > std::size(options_))
      throw std::length_error("a chapter has more options than ChapterOptions takes");
    std::copy(list.begin(), list.end(), options_);
    count_ = list.size();
  }
  constexpr void add(const ChapterOption& option) {
    if (count_ == std::size(options_)) throw std::length_error("a chapter has more options than ChapterOptions takes");
    options_[count_++] = option;
  }
  constexpr const ChapterOption* begin() const { return options_; }
  constexpr const ChapterOption* end() const { return options_ + count_; }
  constexpr std::size_t size() const { return count_; }

 private:
  ChapterOption options_[40] = {};
  std::size_t count_ = 0;
};

/// The values of a chapter's own options: those given, and the defaults of the others.
class OptionValues {
 public:
  struct Entry {
    std::string name;
    std::variant<std::size_t, std::string, bool> value;
    /// "micro-batch 4", "precision fp32"; of a flag its name.
    std::string words() const {
      if (const auto* number = std::get_if<std::size_t>(&value)) return name + " " + std::to_string(*number);
      if (const auto* word = std::get_if<std::string>(&value)) return name + " " + *word;
      return name;
    }
  };

  /// The value; nothing when the option was not given and has no default.
  template <class T>
  std::optional<T> find(const Option<T>& option) const {
    for (const Entry& entry : entries_)
      if (entry.name == option.name) return std::get<T>(entry.value);
    return std::nullopt;
  }
  /// Whether the option was given, or has a default.
  bool has(std::string_view name) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; });
  }
  /// The value of an option that has a default, or is a flag. Throws std::bad_optional_access for others.
  template <class T>
  T operator[](const Option<T>& option) const {
    if constexpr (std::is_same_v<T, bool>) return find(option).value_or(false);
    return find(option).value();
  }
  template <class T>
  void set(const Option<T>& option, T value) {
    set(option.name, std::move(value));
  }
  template <class T>
  void set(std::string_view name, T value) {
    for (Entry& entry : entries_)
      if (entry.name == name) return void(entry.value = std::move(value));
    entries_.push_back({std::string(name), std::move(value)});
  }
  /// In the order in which the chapter names them. A flag that was not given is not there.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

/// A whole number from `least` to `most`. Throws UsageError otherwise, in one line that names `option` ("--batch"), says
/// what is allowed, and ends with `more` (", or auto").
std::size_t parse_number(const std::string& option, const std::string& text, std::size_t least,
                         std::size_t most = std::size_t(-1), const char* more = "");
/// Which of `known` the word is. Throws UsageError otherwise, in one line that names `option` and lists them.
std::size_t parse_word(const std::string& option, const std::string& text, const std::vector<std::string>& known);
/// The value that somebody wrote for an option that takes one. Throws UsageError, in one line, where it is not allowed.
void set_option(OptionValues& values, const ChapterOption& option, const std::string& text);

}  // namespace oomlab
