#pragma once
// Where the bytes of training go: the categories by which a ledger counts and a plan predicts.

#include <array>
#include <cstddef>
#include <cstdint>

namespace oomlab {

/// Where the bytes of training go.
enum class Category { parameters, gradients, optimizer, activations, workspace, data };
inline constexpr std::size_t kCategoryCount = 6;
/// "parameters", …: the name in tables, JSON and traces.
const char* name_of(Category category) noexcept;

/// One figure (bytes) a category; indexed by Category.
struct ByCategory {
  std::array<std::uint64_t, kCategoryCount> bytes{};
  std::uint64_t& operator[](Category c) { return bytes[static_cast<std::size_t>(c)]; }
  std::uint64_t operator[](Category c) const { return bytes[static_cast<std::size_t>(c)]; }
  /// Throws std::length_error when the sum does not fit 64 bits.
  std::uint64_t total() const;
  friend bool operator==(const ByCategory&, const ByCategory&) = default;
};

}  // namespace oomlab
