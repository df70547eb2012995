#include "plan/option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "plan/text.h"

namespace oomlab {

std::size_t parse_number(const std::string& option, const std::string& text, std::size_t least, std::size_t most,
                         const char* more) {
  std::size_t value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) return value;
  throw UsageError(fmt::format("{} '{}' is not allowed; write a whole number, {}{}{}", option, text, least,
                               most == std::size_t(-1) ? " or more" : fmt::format(" to {}", most), more));
}

void set_option(OptionValues& values, const ChapterOption& option, const std::string& text) {
  if (option.kind == ChapterOption::Kind::number)
    return values.set(option.name, parse_number(fmt::format("--{}", option.name), text, option.least, option.most));
  const std::vector<std::string> words = split(option.words, ' ');
  if (*option.words && std::ranges::find(words, text) == words.end())
    throw UsageError(fmt::format("--{} '{}' is unknown; known: {}", option.name, text, fmt::join(words, ", ")));
  values.set(option.name, text);
}

}  // namespace oomlab
