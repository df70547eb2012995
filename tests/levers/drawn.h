#pragma once
// How many combinations a test draws.

#include <cstddef>
#include <cstdlib>
#include <string>

namespace oomlab::test {

/// As many as by day, or, nightly, as many as the environment says.
inline std::size_t drawn(std::size_t by_day) {
  const char* const nightly = std::getenv("OOMLAB_DRAWN");
  return nightly ? std::stoul(nightly) : by_day;
}

}  // namespace oomlab::test
