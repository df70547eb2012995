#include "plan/blas_workspace.h"

#include <algorithm>

namespace oomlab {

std::uint64_t default_workspace(std::uint64_t budget) {
  const std::uint64_t twentieth = budget / 20 / kGranule * kGranule;
  return budget == kUnlimited ? kBlasWorkspaceBytes : std::clamp(twentieth, kGranule, kBlasWorkspaceBytes);
}

}  // namespace oomlab
