// Linked to a lesson, for the end of a program that would succeed. Nothing of the device may be left: CUDA does not
// mind, and neither would a leak checker, because the host runtime knows every block. And it has not asked the device
// for more work than a reader waits for: counted, because how long that takes depends on the machine (tests/run bench).

#include <oomlab_host.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace host = oomlab::host;

namespace {

constexpr std::uint64_t kMostCalls = 10'000, kMostFlops = 60'000'000'000, kMostBytes = std::uint64_t(2) << 30;

std::string complaint() {
  if (host::live() != host::Live{}) return "left behind: " + host::describe(host::live());
  const host::Work work = host::work();
  const auto most = [](const char* what, std::uint64_t found, std::uint64_t allowed) {
    return found <= allowed
               ? ""
               : std::string(what) + " " + std::to_string(found) + ", more than " + std::to_string(allowed);
  };
  return most("launches and products:", work.launches + work.gemms, kMostCalls) +
         most("operations of products:", work.gemm_flops, kMostFlops) +
         most("bytes copied and filled:", work.copied_bytes + work.filled_bytes, kMostBytes);
}

const struct AtExit {
  ~AtExit() {
    const std::string text = complaint();
    if (text.empty()) return;
    std::fprintf(stderr, "FAIL: %s\n", text.c_str());
    std::_Exit(1);
  }
} at_exit;

}  // namespace
