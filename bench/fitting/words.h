#pragma once
// What the first lines of an answer are written with.

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "dtype.h"
#include "plan/language.h"

namespace oomlab::fit {

/// Columns on a terminal: characters of three bytes and more are twice as wide.
std::size_t columns_of(const std::string& text);
/// With blanks behind it, to so many columns.
std::string padded(const std::string& text, std::size_t columns);
/// GiB: "9.42", "23.6".
std::string gib(double bytes);
inline std::string gib(std::uint64_t bytes) { return gib(double(bytes)); }

/// A hub's name without its owner, and of a path its end: at most 29 columns.
std::string short_name(std::string_view name);

/// A format's name for people: "BF16".
std::string upper_case(DType dtype);

}  // namespace oomlab::fit
