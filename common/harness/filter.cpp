#include "harness/filter.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <map>
#include <memory>
#include <mutex>

#include "harness/chapter.h"

namespace oomlab {
namespace {

constexpr std::size_t kMostCharacters = 1000;
constexpr std::int64_t kMostBytes = std::int64_t(1) << 20;  // of an expression and what matching it keeps

RE2::Options options() {
  RE2::Options chosen;
  chosen.set_log_errors(false);
  chosen.set_max_mem(kMostBytes);
  return chosen;
}

// Expressions live as long as the program, which knows one or two.
const RE2& expression(const std::string& pattern) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const RE2>> known;
  const std::lock_guard guard(mutex);
  std::unique_ptr<const RE2>& found = known[pattern];
  if (!found) found = std::make_unique<const RE2>(pattern, options());
  return *found;
}

}  // namespace

void check_filter(const std::string& option, const std::string& pattern) {
  if (pattern.size() > kMostCharacters)
    throw UsageError(
        fmt::format("{} has {} characters; a regular expression may have {}", option, pattern.size(), kMostCharacters));
  if (pattern.empty()) return;
  if (const RE2& compiled = expression(pattern); !compiled.ok())
    throw UsageError(fmt::format("{} '{}' is not a regular expression: {}", option, pattern, compiled.error()));
}

bool matches_filter(const std::string& pattern, const std::string& name) {
  return pattern.empty() || RE2::PartialMatch(name, expression(pattern));
}

}  // namespace oomlab
