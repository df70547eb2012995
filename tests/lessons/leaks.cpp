// Linked to a lesson: at the end of a program that would succeed nothing of the device may be left. CUDA does not mind,
// and neither would a leak checker, because the host runtime knows every block.

#include <oomlab_host.h>

#include <cstdio>
#include <cstdlib>

namespace host = oomlab::host;

const struct AtExit {
  ~AtExit() {
    if (host::live() == host::Live{}) return;
    std::fprintf(stderr, "FAIL: left behind: %s\n", host::describe(host::live()).c_str());
    std::_Exit(1);
  }
} at_exit;
