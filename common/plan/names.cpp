#include "plan/names.h"

#include <algorithm>
#include <numeric>

namespace oomlab {
namespace {

// Nobody's name is longer; what is typed may be.
constexpr std::size_t kLongest = 80;

}  // namespace

std::string lower_case(std::string_view text) {
  std::string small(text);
  for (char& c : small)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return small;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // from the letters of `a` so far to each beginning of `b`
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t above_left = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = above_left + (a[i] != b[j]);
      above_left = row[j + 1];
      row[j + 1] = std::min({row[j + 1] + 1, row[j] + 1, replaced});
    }
  }
  return row.back();
}

std::vector<std::size_t> nearest_names(std::string_view wanted, std::span<const std::vector<std::string>> known,
                                       std::size_t count, std::size_t farthest) {
  const std::string_view beginning = wanted.substr(0, kLongest);
  std::vector<std::size_t> distance(known.size(), SIZE_MAX), order;
  for (std::size_t i = 0; i < known.size(); ++i) {
    for (const std::string& name : known[i]) distance[i] = std::min(distance[i], edit_distance(beginning, name));
    if (distance[i] <= farthest) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return distance[i]; });
  order.resize(std::min(order.size(), count));
  return order;
}

}  // namespace oomlab
