#pragma once
// For the functions that read model names.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "plan/names.h"

namespace oomlab::nn {

/// Throws std::invalid_argument with one line: "model 'gpt:4-3-128' " and why it cannot be.
[[noreturn]] inline void bad_model(std::string_view text, const std::string& why) {
  throw std::invalid_argument("model '" + std::string(text) + "' " + why);
}

/// The same of a name that is none of `names`; those like it are said, then all, and `forms`, which have figures.
[[noreturn]] inline void unknown_model(std::string_view text, std::span<const char* const> names, const char* forms) {
  constexpr std::size_t kAsMany = 3, kAsFar = 3;
  const std::size_t farthest = std::min(kAsFar, text.size() / 2);
  std::vector<std::vector<std::string>> known;
  std::string all;
  for (const char* const name : names) {
    known.push_back({name});
    all += name + std::string(", ");
  }
  std::string like;
  for (const std::size_t i : nearest_names(text, known, kAsMany, farthest))
    like += (like.empty() ? "" : ", ") + known[i][0];
  bad_model(text, "is unknown; " + (like.empty() ? "" : "nearest: " + like + "; ") + "known: " + all + forms);
}

/// Reads "resnet:3-16": after `prefix`, whole numbers between dashes, as many as `numbers` takes. `why` is what
/// bad_model() says otherwise.
inline void read_numbers(std::string_view text, std::string_view prefix, const char* why,
                         std::span<std::uint64_t> numbers) {
  const char *at = text.data() + prefix.size(), *const end = text.data() + text.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    const bool last = i + 1 == numbers.size();
    if (error != std::errc() || (last ? next != end : next == end || *next != '-')) bad_model(text, why);
    at = next + !last;
  }
}

}  // namespace oomlab::nn
