// backend.h for the host runtime.

#include "cuda/backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "oomlab_host.h"

#ifdef _OPENMP
#include <omp.h>
#endif

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
void want_devices(int count) noexcept { setenv("OOMLAB_HOST_DEVICES", std::to_string(std::min(count, 64)).c_str(), 0); }
void share_devices_with_children() noexcept {  // over a file without a name, of which nothing stays
  if (std::getenv("OOMLAB_HOST_SHARED")) return;
  const int file = memfd_create("oomlab", 0);  // where files may not grow, devices are this process's own
  if (file >= 0 && ftruncate(file, 1 << 16) == 0 && ftruncate(file, 0) == 0)
    setenv("OOMLAB_HOST_SHARED", ("/proc/self/fd/" + std::to_string(file)).c_str(), 1);
}
std::optional<DeviceWork> device_work() noexcept {
  if (host::planning()) return std::nullopt;
  const host::Work w = host::work();
  return DeviceWork{w.launches, w.gemms, w.gemm_flops, w.copied_bytes, w.filled_bytes};
}
TimingNeeds timing_needs() noexcept { return {0, 0, 384}; }
void NamedRange::begin(const char*) noexcept {}
void NamedRange::end() noexcept {}
int devices_by_default(int wanted) noexcept { return wanted; }
Deliver expect_processes(int process, int processes, std::function<void(int to, std::string message)> send) {
  return host::expect_processes({process, processes, std::move(send)});
}
void share_processor([[maybe_unused]] int ranks) noexcept {
#ifdef _OPENMP
  omp_set_num_threads(std::max(1, omp_get_num_procs() / ranks));  // products take OpenMP's, too
#endif
}
std::vector<DeviceProcess> device_processes(int device) {
  std::vector<DeviceProcess> all;
  for (host::Sharer& sharer : host::sharers(device)) all.push_back({sharer.pid, sharer.bytes, std::move(sharer.name)});
  return all;
}
std::vector<std::string> device_remarks() { return {}; }
bool may_fill_device(int device, std::size_t) { return device_processes(device).size() < 2; }
std::size_t managed_piece() noexcept { return kManagedPage; }
ManagedWatch::ManagedWatch() = default;
ManagedWatch::~ManagedWatch() = default;
const char* managed_traffic_source() noexcept {
  return "faults and what moves are those of the host runtime's pager: pages of 64 KiB, the oldest one leaves";
}
std::optional<ManagedTraffic> take_managed_traffic() noexcept {
  const host::PagingCounters c = host::take_paging_counters();
  return ManagedTraffic{c.faults, c.bytes_to_device, c.bytes_to_host, c.bytes_prefetched};
}
std::string driver_version() { return "host runtime"; }

}  // namespace oomlab
