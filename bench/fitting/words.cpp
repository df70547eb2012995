#include "words.h"

#include <algorithm>

#include "plan/text.h"

namespace oomlab::fit {

std::size_t columns_of(const std::string& text) {
  std::size_t columns = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) == 0x80) continue;
    columns += byte >= 0xE0 ? 2 : 1;
  }
  return columns;
}

std::string padded(const std::string& text, std::size_t columns) {
  return text + std::string(columns - std::min(columns, columns_of(text)), ' ');
}

std::string short_name(std::string_view name) {
  constexpr std::size_t kMost = 26;
  std::string shown = one_line(name);
  shown = shown.substr(shown.rfind('/') + 1);
  return shown.size() <= kMost ? shown : "..." + shown.substr(shown.size() - kMost);
}

std::string upper_case(DType dtype) {
  std::string name = name_of(dtype);
  for (char& c : name)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return name;
}

std::string gib(double bytes) {
  const double value = bytes / double(std::uint64_t(1) << 30);
  return fmt::format("{:.{}f}", value, std::abs(value) < 9.995 ? 2 : 1);
}

}  // namespace oomlab::fit
