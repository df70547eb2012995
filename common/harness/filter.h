#pragma once
// Which variants a command line asks for: regular expressions (ECMAScript, as Google Benchmark's own filter has them).
// Here alone, because every file with <regex> in it takes seconds more to compile.

#include <string>

namespace oomlab {

/// @throws UsageError when `pattern`, given with `option`, is not a regular expression.
void check_filter(const std::string& option, const std::string& pattern);

/// Whether `pattern` matches a part of `name`; the empty pattern does. `pattern` has passed check_filter().
bool matches_filter(const std::string& pattern, const std::string& name);

}  // namespace oomlab
