#pragma once
// The languages in which programs speak. The option of all of them is --lang, and English is what they speak without it.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "plan/category.h"
#include "plan/option.h"

namespace oomlab {

/// What --lang may be: English, Chinese.
inline const std::vector<std::string>& languages() {
  static const std::vector<std::string> all = {"en", "zh"};
  return all;
}
/// Whether the value that somebody gave --lang asks for Chinese. Throws UsageError for a language that is none of these.
inline bool asks_for_chinese(const std::string& text) { return parse_word("--lang", text, languages()) == 1; }

/// A category's name for people, in English or Chinese.
inline std::string words_of(Category category, bool chinese) {
  static constexpr const char* kChinese[] = {"参数", "梯度", "优化器", "激活", "工作区", "数据"};
  return chinese ? kChinese[static_cast<std::size_t>(category)] : name_of(category);
}

/// A value of a Chinese sentence: "512 bytes", as format_bytes() has it, in Chinese; all others as they are.
template <class T>
const T& in_chinese_units(const T& value) {
  return value;
}
inline std::string in_chinese_units(const std::string& value) {
  static constexpr std::string_view kBytes = " bytes";
  const std::string_view amount =
      std::string_view(value).substr(0, value.size() - std::min(value.size(), kBytes.size()));
  const bool bytes =
      !amount.empty() && value.ends_with(kBytes) && amount.find_first_not_of("+-.,0123456789") == amount.npos;
  return bytes ? fmt::format("{} 字节", amount) : value;
}

/// English or Chinese: both stand side by side where something is said, with the same fields of fmt::format.
struct Say {
  bool chinese = false;
  template <class... T>
  std::string operator()(const char* english, const char* in_chinese, const T&... values) const {
    if (!chinese) return fmt::format(fmt::runtime(english), values...);
    return [&](const auto&... each) {
      return fmt::format(fmt::runtime(in_chinese), each...);
    }(in_chinese_units(values)...);
  }
};

}  // namespace oomlab
