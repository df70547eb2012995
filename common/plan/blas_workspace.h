#pragma once
// The cuBLAS workspace of a context: given to cuBLAS explicitly, so that it is counted like everything else (left
// alone, cuBLAS allocates its own, which no ledger sees).

#include <algorithm>
#include <cstdint>

#include "plan/bytes.h"

namespace oomlab {

/// Bytes, unless somebody says otherwise.
inline constexpr std::uint64_t kBlasWorkspaceBytes = std::uint64_t(8) << 20;

/// Of a run under a budget, bytes, when the user does not say: kBlasWorkspaceBytes, but at most a twentieth of the
/// budget, so that it never hides what a chapter shows. The same on every device.
inline std::uint64_t default_workspace(std::uint64_t budget) {
  const std::uint64_t twentieth = budget / 20 / kGranule * kGranule;
  return budget == kUnlimited ? kBlasWorkspaceBytes : std::clamp(twentieth, kGranule, kBlasWorkspaceBytes);
}

}  // namespace oomlab
