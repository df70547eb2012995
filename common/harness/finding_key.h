#pragma once
// Keys of the result file's findings.

#include <cctype>
#include <string>

namespace oomlab {

/// A name in lower case, with an underscore for each character that is no letter and no digit: "NF4, double" is nf4__double.
inline std::string finding_key(std::string name) {
  for (char& c : name) {
    const auto letter = static_cast<unsigned char>(c);
    c = std::isalnum(letter) ? static_cast<char>(std::tolower(letter)) : '_';
  }
  return name;
}

}  // namespace oomlab
