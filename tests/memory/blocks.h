#pragma once
// Units and addresses for tests of memory.

#include <cstddef>
#include <cstdint>

namespace oomlab {

inline constexpr std::size_t kMiB = std::size_t(1) << 20;

/// The address of a block that does not exist, for a ledger: different for each number.
inline const void* address(std::uintptr_t number) { return reinterpret_cast<const void*>(number << 20); }

}  // namespace oomlab
