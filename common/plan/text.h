#pragma once
// Text for files and messages that others read.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace oomlab {

/// Well-formed UTF-8: each byte that is not part of a well-formed sequence becomes a question mark.
std::string clean_utf8(std::string_view text);

/// `text` as a JSON string, with its quotes. What a terminal would obey is escaped, as in one_line().
std::string json_string(std::string_view text);

/// `text` on one line, as a terminal shows it and does not obey it: control characters (line feeds, too), what turns
/// the direction of text, and bytes that are no UTF-8 are written out: \x0a, \x1b, \u202e, \xff.
std::string one_line(std::string_view text);

/// The words of `text` between the separators; of an empty text one empty word. What option values such as "A,B" are
/// read with: std::getline would take running out of host memory for the end of the text.
std::vector<std::string> split(std::string_view text, char separator);

/// Calls emit() with the pieces of what one_line() makes of `text`; with `line_feeds` these stay as they are. Allocates
/// nothing, where copying emit() does not.
void visit_shown(std::string_view text, bool line_feeds, const std::function<void(std::string_view)>& emit);

}  // namespace oomlab
