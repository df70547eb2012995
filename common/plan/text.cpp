#include "plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace oomlab {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `text`, 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) > 0x9F;
  const bool beyond = lead == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

// The number of a character that is such a sequence.
std::uint32_t code_of(std::string_view sequence) {
  std::uint32_t code = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() > 1) code &= 0x7Fu >> sequence.size();
  for (const char c : sequence.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3F);
  return code;
}

// What a terminal obeys instead of showing it: C0, DEL, C1, line and paragraph separators, and what turns the direction
// of text.
bool is_control(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

void visit_shown(std::string_view text, bool line_feeds, const std::function<void(std::string_view)>& emit) {
  std::size_t shown = 0, at = 0;
  const auto instead = [&](std::size_t length, char letter, int digits, std::uint32_t code) {
    emit(text.substr(shown, at - shown));
    char escape[16];
    const auto end = fmt::format_to_n(escape, sizeof escape, "\\{}{:0{}x}", letter, code, digits).out;
    emit(std::string_view(escape, end));
    shown = at += length;
  };
  while (at < text.size()) {
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) {
      instead(1, 'x', 2, static_cast<unsigned char>(text[at]));
      continue;
    }
    const std::uint32_t code = code_of(text.substr(at, length));
    if (!is_control(code) || (line_feeds && code == '\n'))
      at += length;
    else
      instead(length, code < 0x80 ? 'x' : 'u', code < 0x80 ? 2 : 4, code);
  }
  emit(text.substr(shown));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> words;
  for (;;) {
    const std::size_t end = text.find(separator);
    words.emplace_back(text.substr(0, end));
    if (end == text.npos) return words;
    text.remove_prefix(end + 1);
  }
}

std::string clean_utf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      clean += '?';
    } else {
      clean.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return clean;
}

std::string json_string(std::string_view text) {
  const std::string clean = clean_utf8(text);
  std::string quoted = "\"";
  for (std::string_view rest = clean; !rest.empty();) {
    const std::string_view character = rest.substr(0, utf8_length(rest));
    rest.remove_prefix(character.size());
    if (character == "\"" || character == "\\") quoted += '\\';
    if (const std::uint32_t code = code_of(character); is_control(code))
      fmt::format_to(std::back_inserter(quoted), "\\u{:04x}", code);
    else
      quoted += character;
  }
  return quoted + '"';
}

std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  visit_shown(text, false, [&](std::string_view piece) { line += piece; });
  return line;
}

}  // namespace oomlab
