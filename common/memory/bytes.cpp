#include "memory/bytes.h"

#include <fmt/format.h>

#include <cctype>
#include <iterator>
#include <limits>
#include <stdexcept>

namespace oomlab {
namespace {

struct Unit {
  std::string_view name;  // in lower case
  std::size_t bytes;
};

constexpr std::size_t kKibi = 1024;
constexpr std::size_t kMebi = kKibi * kKibi;
constexpr Unit kUnits[] = {
    {"", 1},
    {"b", 1},
    {"kib", kKibi},
    {"mib", kMebi},
    {"gib", kMebi << 10},
    {"tib", kMebi << 20},
    {"kb", 1000},
    {"mb", 1000'000},
    {"gb", 1000'000'000},
    {"tb", 1000'000'000'000},
};

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  std::string shown(text);
  for (char& c : shown)
    if (std::iscntrl(static_cast<unsigned char>(c))) c = '?';  // the message stays one line
  throw std::invalid_argument(fmt::format(
      "size '{}' {}; write for example 512MiB or 2GiB (units: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)", shown, why));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::size_t round_to_granule(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() - (kGranule - 1))
    throw std::length_error(fmt::format("{} bytes cannot be rounded up to {}", bytes, kGranule));
  return (bytes + kGranule - 1) / kGranule * kGranule;
}

std::size_t checked_product(std::size_t count, std::size_t element_bytes) {
  if (element_bytes != 0 && count > std::numeric_limits<std::size_t>::max() / element_bytes)
    throw std::length_error(fmt::format("{} elements of {} bytes are more than a size can hold", count, element_bytes));
  return count * element_bytes;
}

std::size_t checked_sum(std::size_t a, std::size_t b) {
  if (a > SIZE_MAX - b) throw std::length_error("a size does not fit 64 bits");
  return a + b;
}

std::size_t parse_bytes(std::string_view text) {
  using Wide = unsigned __int128;
  constexpr Wide kLimit = std::numeric_limits<std::size_t>::max();
  constexpr int kFractionDigits = 18;  // what lies beyond is less than a byte, even of a TiB

  std::size_t at = 0;
  Wide whole = 0;
  for (; at < text.size() && is_digit(text[at]); ++at)
    if (whole <= kLimit) whole = whole * 10 + static_cast<unsigned>(text[at] - '0');
  if (at == 0) refuse(text, "is not understood");

  Wide fraction = 0, scale = 1;
  if (at < text.size() && text[at] == '.') {
    const std::size_t first = ++at;
    for (; at < text.size() && is_digit(text[at]); ++at) {
      if (at - first >= kFractionDigits) continue;
      fraction = fraction * 10 + static_cast<unsigned>(text[at] - '0');
      scale *= 10;
    }
    if (at == first) refuse(text, "is not understood");
  }

  std::string name(text.substr(at));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Unit& unit : kUnits) {
    if (unit.name != name) continue;
    if (whole > kLimit) refuse(text, "is too large");
    const Wide bytes = whole * unit.bytes + fraction * unit.bytes / scale;
    if (bytes > kLimit) refuse(text, "is too large");
    if (bytes == 0) refuse(text, "is less than one byte");
    return static_cast<std::size_t>(bytes);
  }
  refuse(text, "is not understood");
}

std::string format_bytes(std::size_t bytes) {
  if (bytes < kKibi) return fmt::format("{} {}", bytes, bytes == 1 ? "byte" : "bytes");
  static constexpr const char* kNames[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  constexpr std::size_t kLast = std::size(kNames) - 1;
  double value = static_cast<double>(bytes) / kKibi;
  std::size_t unit = 0;
  // 1023.995 would be written "1024.00": such a value already belongs to the next unit.
  for (; value >= 1023.995 && unit < kLast; ++unit) value /= kKibi;
  return fmt::format("{:.2f} {}", value, kNames[unit]);
}

}  // namespace oomlab
