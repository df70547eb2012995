// common/cuda/backend.h for the host runtime.

#include "cuda/backend.h"

#include <stdexcept>

#include "oomlab_host.h"

namespace oomlab {

const char* backend_name() noexcept { return "host"; }
bool planning() noexcept { return host::planning(); }
bool enable_planning() noexcept {
  try {
    host::set_planning(true);
    return true;
  } catch (const std::exception&) {
    return false;  // something is live already
  }
}
std::vector<DeviceProcess> device_processes(int) { return {}; }
std::optional<ManagedTraffic> take_managed_traffic() noexcept {
  const host::PagingCounters c = host::take_paging_counters();
  return ManagedTraffic{c.faults, c.bytes_to_device, c.bytes_to_host, c.bytes_prefetched};
}
std::string driver_version() { return "host runtime"; }

}  // namespace oomlab
