#pragma once
// Text for files and messages that others read.

#include <cstdio>
#include <string>
#include <string_view>

namespace oomlab {

/// Well-formed UTF-8: each byte that is not part of a well-formed sequence becomes a question mark.
std::string clean_utf8(std::string_view text);

/// `text` as a JSON string, with its quotes. What a terminal would obey is escaped, as in one_line().
std::string json_string(std::string_view text);

/// `text` on one line, as a terminal shows it and does not obey it: control characters (line feeds, too), what turns
/// the direction of text, and bytes that are no UTF-8 are written out: \x0a, \x1b, \u202e, \xff.
std::string one_line(std::string_view text);

/// Writes `text` to `file` as one_line() has it, but with its line feeds. Whatever a name, a path or a message of
/// somebody else may be part of is printed by this. Never throws: what could not be written shows in std::ferror(file).
void put(std::FILE* file, std::string_view text) noexcept;

/// "program: what" as one line on standard error, after what standard output has. Returns `exit_code`.
int complain(std::string_view program, std::string_view what, int exit_code) noexcept;

/// Throws std::runtime_error when something that was printed could not be written: the disk is full, the reader gone,
/// standard output closed.
void flush_output();

/// Of descriptors 0 to 2, those that the caller has closed lead nowhere from here on, so that no file is opened in
/// their place and takes what is meant for the terminal. Writing to such a standard output still fails. For the first
/// line of main().
void open_standard_descriptors() noexcept;

}  // namespace oomlab
