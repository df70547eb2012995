#pragma once
// For tests of plan mode, on the host runtime.

#include "oomlab_host.h"

namespace oomlab::test {

/// Plan mode for the scope of a test, however that ends.
struct Planning {
  Planning() { host::set_planning(true); }
  ~Planning() { host::set_planning(false); }
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;
};

}  // namespace oomlab::test
