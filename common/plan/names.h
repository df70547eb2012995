#pragma once
// Names that people type: in capitals or not, and almost right.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oomlab {

/// A to Z small.
std::string lower_case(std::string_view text);

/// How many letters must be put in, taken out or replaced to make one of the other (Levenshtein).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Which of `known` are nearest to `wanted`, the nearest first, of equal ones the earlier: at most `count`, and none
/// that is farther away than `farthest`. Each of them may have several names.
std::vector<std::size_t> nearest_names(std::string_view wanted, std::span<const std::vector<std::string>> known,
                                       std::size_t count, std::size_t farthest = SIZE_MAX);

}  // namespace oomlab
