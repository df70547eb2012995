#include "plan/option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

std::size_t parse_word(const std::string& option, const std::string& text, const std::vector<std::string>& known) {
  const auto found = std::ranges::find(known, text);
  if (found == known.end())
    throw UsageError(fmt::format("{} '{}' is unknown; known: {}", option, text, fmt::join(known, ", ")));
  return static_cast<std::size_t>(found - known.begin());
}

void set_option(OptionValues& values, const ChapterOption& option, const std::string& text) {
  if (option.kind == ChapterOption::Kind::number)
    return values.set(option.name, parse_number(fmt::format("--{}", option.name), text, option.least, option.most));
  if (*option.words) (void)parse_word(fmt::format("--{}", option.name), text, split(option.words, ' '));
  values.set(option.name, text);
}

}  // namespace oomlab
