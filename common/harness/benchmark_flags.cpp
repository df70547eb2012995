#include "harness/benchmark_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "harness/chapter.h"
#include "harness/filter.h"
#include "harness/outputs.h"
#include "memory/files.h"

namespace oomlab {
namespace {

// All of a text; not a number when it is none.
double number_of(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size())
    throw UsageError(fmt::format("{} '{}' is not a number", name, text));
  return number;
}

void one_of(const std::string& name, const std::string& value, const std::vector<std::string>& known) {
  if (std::ranges::find(known, value) == known.end())
    throw UsageError(fmt::format("{} '{}' is unknown; known: {}", name, value, fmt::join(known, ", ")));
}

// What follows the minus sign of a filter that leaves out.
std::string expression_of(const std::string& filter) { return filter.starts_with('-') ? filter.substr(1) : filter; }

}  // namespace

std::string benchmark_value(const std::string& flag, const std::string& name) {
  const std::string begin = name + "=";
  return flag.starts_with(begin) ? flag.substr(begin.size()) : "";
}

void check_benchmark_flag(const std::string& flag) {
  const std::size_t equals = flag.find('=');
  const std::string name = flag.substr(0, equals), value = equals == std::string::npos ? "" : flag.substr(equals + 1);
  if (name == "--benchmark_filter") {
    check_filter(name, expression_of(value));
  } else if (name == "--benchmark_out") {
    if (value.empty()) throw UsageError("--benchmark_out needs a value: --benchmark_out=FILE");
    check_output_path(name, value);
    if (same_file(value, "/dev/stdout"))  // which it would truncate
      throw UsageError(fmt::format("{} '{}' is where this program prints; name another file", name, value));
  } else if (name == "--benchmark_format" || name == "--benchmark_out_format") {
    one_of(name, value, {"console", "json", "csv"});
  } else if (name == "--benchmark_time_unit") {
    one_of(name, value, {"ns", "us", "ms", "s"});
  } else if (name == "--benchmark_min_time" || name == "--benchmark_min_warmup_time") {
    if (const double seconds = number_of(name, value); !(seconds >= 0 && seconds <= 1e6))
      throw UsageError(fmt::format("{} '{}' is not a number of seconds from 0 to 1000000", name, value));
  } else if (name == "--benchmark_repetitions" || name == "--benchmark_v") {
    if (const double count = number_of(name, value); !(count >= 0 && count <= 1e6 && count == std::floor(count)) ||
                                                     value.find_first_not_of("0123456789") != value.npos)
      throw UsageError(fmt::format("{} '{}' is not a whole number from 0 to 1000000", name, value));
  } else if (name == "--benchmark_context") {
    for (const std::string& pair : split(value, ','))
      if (const std::size_t at = pair.find('='); at == pair.npos || at == 0 || pair.find('=', at + 1) != pair.npos)
        throw UsageError(fmt::format("{} '{}' is not a list of KEY=VALUE", name, value));
  }
}

bool matches_benchmark_filter(const std::string& filter, const std::string& name) {
  if (filter.empty() || filter == "all") return true;
  return matches_filter(expression_of(filter), name) != filter.starts_with('-');
}

}  // namespace oomlab
