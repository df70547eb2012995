#include "harness/filter.h"

#include <fmt/format.h>

#include <regex>

#include "harness/chapter.h"

namespace oomlab {

void check_filter(const std::string& option, const std::string& pattern) {
  try {
    (void)std::regex(pattern);
  } catch (const std::regex_error&) {
    throw UsageError(fmt::format("{} '{}' is not a regular expression", option, pattern));
  }
}

bool matches_filter(const std::string& pattern, const std::string& name) {
  return std::regex_search(name, std::regex(pattern));
}

}  // namespace oomlab
