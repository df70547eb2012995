#pragma once
// For the functions that read model names.

#include <stdexcept>
#include <string>
#include <string_view>

namespace oomlab::nn {

/// Throws std::invalid_argument with one line: "model 'gpt:4-3-128' " and why it cannot be.
[[noreturn]] inline void bad_model(std::string_view text, const std::string& why) {
  throw std::invalid_argument("model '" + std::string(text) + "' " + why);
}

}  // namespace oomlab::nn
