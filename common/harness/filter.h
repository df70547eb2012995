#pragma once
// Which variants a command line asks for: regular expressions of RE2's syntax, matched in a time that grows with the
// length of the name, whatever the expression is.

#include <string>

namespace oomlab {

/// @throws UsageError when `pattern`, given with `option`, is not a regular expression, or one too large.
void check_filter(const std::string& option, const std::string& pattern);

/// Whether `pattern` matches a part of `name`; the empty pattern does. `pattern` has passed check_filter().
bool matches_filter(const std::string& pattern, const std::string& name);

}  // namespace oomlab
