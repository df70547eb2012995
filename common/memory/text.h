#pragma once
// Text for files and messages that others read.

#include <string>
#include <string_view>

namespace oomlab {

/// Well-formed UTF-8: each byte that is not part of a well-formed sequence becomes a question mark.
std::string clean_utf8(std::string_view text);

/// `text` as a JSON string, with its quotes.
std::string json_string(std::string_view text);

/// `text` on one line: control characters become question marks.
std::string one_line(std::string_view text);

}  // namespace oomlab
