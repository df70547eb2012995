#pragma once
// What several tests of memory count in.

#include <cstddef>
#include <cstdint>

namespace oomlab {

inline constexpr std::size_t kMiB = std::size_t(1) << 20;

/// The address of a block that does not exist, for a ledger: any number, never the same as another's.
inline const void* address(std::uintptr_t number) { return reinterpret_cast<const void*>(number << 20); }

}  // namespace oomlab
