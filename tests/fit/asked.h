#pragma once
// Questions as one types them.

#include <sstream>
#include <string>
#include <vector>

#include "../../bench/fitting/question.h"

namespace oomlab::fit {

/// `words`, parted at blanks, as bench/fit reads them. Throws UsageError as that does.
inline Question asked(const std::string& words) {
  std::istringstream in(words);
  std::vector<std::string> arguments;
  for (std::string word; in >> word;) arguments.push_back(word);
  return parse_question(arguments).value();
}

}  // namespace oomlab::fit
