#pragma once
// Text that is printed. How it is made fit to be read: plan/text.h.

#include <cstdio>
#include <string_view>

namespace oomlab {

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
