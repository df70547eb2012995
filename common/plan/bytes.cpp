#include "plan/bytes.h"

#include <fmt/format.h>

#include <cctype>
#include <cstddef>
#include <iterator>
#include <limits>
#include <stdexcept>

namespace oomlab {
namespace {

struct Unit {
  std::string_view name;  // in lower case
  std::uint64_t bytes;
};

constexpr std::uint64_t kKibi = 1024;
constexpr std::uint64_t kMebi = kKibi * kKibi;
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

// `bytes` times 0.DIGITS, rounded down. Six digits at a time, the last ones first, so that no product is beyond 64 bits.
std::uint64_t part_of(std::uint64_t bytes, std::string digits) {
  constexpr std::size_t kDigits = 18;  // what lies beyond is less than a byte, even of a TiB
  constexpr std::size_t kAtATime = 6;
  constexpr std::uint64_t kScale = 1'000'000;
  digits.resize(kDigits, '0');
  std::uint64_t part = 0;
  for (std::size_t at = kDigits; at > 0; at -= kAtATime) {
    std::uint64_t figure = 0;
    for (const char digit : digits.substr(at - kAtATime, kAtATime))
      figure = figure * 10 + static_cast<std::uint64_t>(digit - '0');
    part = (figure * bytes + part) / kScale;
  }
  return part;
}

}  // namespace

std::uint64_t round_to_granule(std::uint64_t bytes) {
  if (bytes > std::numeric_limits<std::uint64_t>::max() - (kGranule - 1))
    throw std::length_error(fmt::format("{} bytes cannot be rounded up to {}", bytes, kGranule));
  return (bytes + kGranule - 1) / kGranule * kGranule;
}

std::uint64_t checked_product(std::uint64_t count, std::uint64_t element_bytes) {
  if (element_bytes != 0 && count > std::numeric_limits<std::uint64_t>::max() / element_bytes)
    throw std::length_error(fmt::format("{} elements of {} bytes are more than a size can hold", count, element_bytes));
  return count * element_bytes;
}

std::uint64_t checked_sum(std::uint64_t a, std::uint64_t b) {
  if (a > UINT64_MAX - b) throw std::length_error("a size does not fit 64 bits");
  return a + b;
}

std::uint64_t checked_sum(std::initializer_list<std::uint64_t> summands) {
  std::uint64_t sum = 0;
  for (const std::uint64_t summand : summands) sum = checked_sum(sum, summand);
  return sum;
}

std::uint64_t buffer_bytes(std::uint64_t rows, std::uint64_t width, DType type) {
  return round_to_granule(checked_product(checked_product(rows, width), element_bytes(type)));
}

std::uint64_t parse_bytes(std::string_view text) {
  std::size_t at = 0;
  std::uint64_t whole = 0;
  bool too_large = false;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    const auto digit = static_cast<std::uint64_t>(text[at] - '0');
    too_large |= __builtin_mul_overflow(whole, std::uint64_t(10), &whole);
    too_large |= __builtin_add_overflow(whole, digit, &whole);
  }
  if (at == 0) refuse(text, "is not understood");

  std::string fraction;
  if (at < text.size() && text[at] == '.') {
    const std::size_t first = ++at;
    while (at < text.size() && is_digit(text[at])) ++at;
    fraction = text.substr(first, at - first);
    if (fraction.empty()) refuse(text, "is not understood");
  }

  if (at + 1 < text.size() && text[at] == ' ') ++at;
  std::string name(text.substr(at));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Unit& unit : kUnits) {
    if (unit.name != name) continue;
    std::uint64_t bytes = 0;
    too_large |= __builtin_mul_overflow(whole, unit.bytes, &bytes);
    too_large |= __builtin_add_overflow(bytes, part_of(unit.bytes, fraction), &bytes);
    if (too_large) refuse(text, "is too large");
    if (bytes == 0) refuse(text, "is less than one byte");
    return bytes;
  }
  refuse(text, "is not understood");
}

std::string format_bytes(std::uint64_t bytes) {
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
