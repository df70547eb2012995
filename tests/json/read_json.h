#pragma once
// JSON in tests. The parser is compiled once, in read_json.cpp.

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string_view>

namespace oomlab::test {

/// Throws nlohmann::json::parse_error.
nlohmann::json read_json(std::string_view text);
nlohmann::json read_json(std::istream& text);

}  // namespace oomlab::test
