#pragma once
// What the tests of this folder share.

#include <cstdint>
#include <vector>

#include "plan/image/run.h"

namespace oomlab::image {

// Inside of a test, Run is GoogleTest's.
using ImageRun = Run;

inline std::uint64_t up(std::uint64_t bytes) { return (bytes + 511) / 512 * 512; }

/// Of all tensors, each a buffer, with `bytes` for each value.
inline std::uint64_t stored(const std::vector<TensorOf>& tensors, std::uint64_t bytes) {
  std::uint64_t sum = 0;
  for (const TensorOf& tensor : tensors) sum += up(tensor.elements() * bytes);
  return sum;
}

}  // namespace oomlab::image
