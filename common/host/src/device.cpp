// The machine: devices with a capacity each, what is live on them, and plan mode.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "runtime.h"

namespace oomlab::host {
namespace {

constinit thread_local int this_device = 0;

[[noreturn]] void bad_setting(const char* name, std::string_view value, const char* allowed) {
  throw std::invalid_argument(std::string(name) + "='" + std::string(value) + "' is not " + allowed);
}

// "8GiB", "1.5MiB", "4096".
std::size_t parse_size(const char* name, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string_view unit(end);
  const std::string_view units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  const auto found = std::find(std::begin(units), std::end(units), unit);
  if (end == text.c_str() || !(number > 0) || number > 1e18 || found == std::end(units))
    bad_setting(name, text, "a size such as 512MiB or 8GiB");
  return static_cast<std::size_t>(number * static_cast<double>(std::size_t(1) << 10 * (found - std::begin(units))));
}

std::size_t machine_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  std::size_t bytes = static_cast<std::size_t>(pages) * static_cast<std::size_t>(page);
  std::size_t limit = 0;  // of the container, where there is one
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) bytes = std::min(bytes, limit);
  return bytes;
}

Machine machine_from_environment() {
  Machine machine;
  if (const char* text = std::getenv("OOMLAB_HOST_DEVICES")) {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (end == text || *end || n < 1 || n > 64) bad_setting("OOMLAB_HOST_DEVICES", text, "a number from 1 to 64");
    machine.devices = static_cast<int>(n);
  }
  std::size_t last = machine_memory() / 4 * 3;
  const char* const memory = std::getenv("OOMLAB_HOST_MEMORY");
  std::string sizes = memory ? memory : "";
  for (std::size_t& capacity : machine.capacity) {
    if (!sizes.empty()) {
      const std::size_t comma = sizes.find(',');
      last = parse_size("OOMLAB_HOST_MEMORY", sizes.substr(0, comma));
      sizes = comma == std::string::npos ? "" : sizes.substr(comma + 1);
    }
    capacity = last;
  }
  if (const char* text = std::getenv("OOMLAB_HOST_STREAMS")) {
    const std::string_view mode(text);
    machine.deferred = mode.starts_with("deferred");
    if (mode.starts_with("deferred:")) {
      char* end = nullptr;
      machine.seed = std::strtoull(text + 9, &end, 10);
      if (end == text + 9 || *end) bad_setting("OOMLAB_HOST_STREAMS", text, "eager, deferred or deferred:SEED");
    } else if (mode != "eager" && mode != "deferred") {
      bad_setting("OOMLAB_HOST_STREAMS", text, "eager, deferred or deferred:SEED");
    }
  }
  if (const char* text = std::getenv("OOMLAB_HOST_NCCL")) {
    machine.rendezvous = std::string_view(text) == "rendezvous";
    if (!machine.rendezvous && std::string_view(text) != "buffered")
      bad_setting("OOMLAB_HOST_NCCL", text, "buffered or rendezvous");
    if (machine.rendezvous && machine.deferred)
      bad_setting("OOMLAB_HOST_NCCL", text, "buffered, with deferred streams");
  }
  return machine;
}

void set_up(Runtime& r, const Machine& machine) {
  r.machine = machine;
  r.streams.clear();
  r.random = machine.seed * 0x9e3779b97f4a7c15u + 1;
  r.devices.assign(static_cast<std::size_t>(machine.devices), Device{});
  for (int d = 0; d < machine.devices; ++d) {
    r.devices[std::size_t(d)].capacity = machine.capacity[d];
    managed_set_limit(d, machine.capacity[d]);
  }
  make_null_streams(r);
  make_default_pools(r);
}

void require_nothing_live(const char* what) {
  if (const Live now = runtime().live; now != Live{})
    throw std::logic_error(std::string(what) + " while something is live: " + describe(now));
}

}  // namespace

Runtime::Runtime() { set_up(*this, machine_from_environment()); }

Runtime& runtime() {
  static Runtime& instance = *[] {
    const RuntimeScope scope;
    return new Runtime;  // never destroyed: destructors of static objects may still free device memory
  }();
  return instance;
}

void configure(const Machine& machine) {
  Runtime& r = runtime();
  const RuntimeScope scope;
  if (machine.devices < 1 || machine.devices > 64)
    throw std::invalid_argument("a machine has 1 to 64 devices, not " + std::to_string(machine.devices));
  Lock lock(r.mutex);
  require_nothing_live("configure()");
  drain_device(lock, -1);
  destroy_default_pools();
  set_up(r, machine);
}

const Machine& machine() { return runtime().machine; }

void set_planning(bool on) {
  Runtime& r = runtime();
  const RuntimeScope scope;
  Lock lock(r.mutex);
  if (on == r.planning) return;
  require_nothing_live("set_planning()");
  drain_device(lock, -1);
  destroy_default_pools();  // their addresses are of the other kind
  r.planning = on;
  r.next_address = std::uintptr_t(1) << 60;  // no such address exists: touching it is a fault
  make_default_pools(r);
}

bool planning() noexcept {
  try {
    return runtime().planning;
  } catch (...) {
    return false;
  }
}

Live live() noexcept {
  try {
    const Lock lock = lock_runtime();
    return runtime().live;
  } catch (...) {
    return {};  // there is no machine
  }
}

std::string describe(const Live& l) {
  std::string text;
  const auto add = [&](std::size_t n, const char* one, const char* many, const char* more = "") {
    if (n) text += (text.empty() ? "" : ", ") + std::to_string(n) + " " + (n == 1 ? one : many) + more;
  };
  const std::string in = " in " + std::to_string(l.device_blocks) + (l.device_blocks == 1 ? " block" : " blocks");
  add(l.streams, "stream", "streams");
  add(l.events, "event", "events");
  add(l.device_bytes, "device byte", "device bytes", in.c_str());
  if (!l.device_bytes) add(l.device_blocks, "device block", "device blocks");
  add(l.pinned_bytes, "pinned byte", "pinned bytes");
  add(l.pools, "pool", "pools");
  add(l.reservations, "address reservation", "address reservations");
  add(l.vmm_handles, "memory handle", "memory handles");
  add(l.blas_handles, "cuBLAS handle", "cuBLAS handles");
  add(l.communicators, "communicator", "communicators");
  return text.empty() ? "nothing" : text;
}

void count_blas_handle(int delta) noexcept {
  const Lock lock = lock_runtime();
  runtime().live.blas_handles += static_cast<std::size_t>(delta);
}

// A machine may have been replaced by one with fewer devices.
int device_of_this_thread() noexcept { return this_device; }
namespace {
Work work_of[64];  // by device; several threads may drive one
}
void count_work(int device, std::uint64_t Work::*what, std::uint64_t amount) noexcept {
  std::atomic_ref(work_of[device].*what).fetch_add(amount, std::memory_order_relaxed);
}
Work work() noexcept {
  Work& all = work_of[current_device()];
  const auto get = [&](std::uint64_t Work::*what) {
    return std::atomic_ref(all.*what).load(std::memory_order_relaxed);
  };
  return {get(&Work::launches), get(&Work::gemms), get(&Work::gemm_flops), get(&Work::copied_bytes),
          get(&Work::filled_bytes)};
}

void count_gemm(std::uint64_t flops) noexcept {
  count_work(current_device(), &Work::gemms);
  count_work(current_device(), &Work::gemm_flops, flops);
}

int current_device() { return this_device < runtime().machine.devices ? this_device : 0; }
bool valid_device(int device) { return device >= 0 && device < runtime().machine.devices; }

std::size_t free_bytes(const Device& device) {
  const std::size_t used = device.used + managed_resident(static_cast<int>(&device - runtime().devices.data()));
  return used < device.capacity ? device.capacity - used : 0;
}

bool charge(int device, std::size_t bytes) {
  Runtime& r = runtime();
  Device& d = r.devices[std::size_t(device)];
  if (!r.planning) {
    if (bytes > d.capacity - d.used) return false;  // managed pages make room, see managed_set_limit()
  }
  d.used += bytes;
  if (!r.planning) managed_set_limit(device, d.capacity - d.used);
  return true;
}

void refund(int device, std::size_t bytes) {
  Runtime& r = runtime();
  Device& d = r.devices[std::size_t(device)];
  d.used -= bytes;
  if (!r.planning) managed_set_limit(device, d.capacity - d.used);
}

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaDriverGetVersion(int* version) {
  return entry("cudaDriverGetVersion", cudaErrorUnknown, [&] {
    if (!version) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return entry("cudaRuntimeGetVersion", cudaErrorUnknown, [&] {
    if (!version) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  return entry("cudaGetDeviceCount", cudaErrorInitializationError, [&] {
    if (!count) return cudaErrorInvalidValue;
    *count = machine().devices;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return entry("cudaSetDevice", cudaErrorUnknown, [&] {
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    this_device = device;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* device) {
  return entry("cudaGetDevice", cudaErrorUnknown, [&] {
    if (!device) return cudaErrorInvalidValue;
    *device = current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return entry("cudaGetDeviceProperties", cudaErrorUnknown, [&] {
    if (!prop) return cudaErrorInvalidValue;
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    *prop = {};
    std::snprintf(prop->name, sizeof prop->name, "host runtime device %d", device);
    prop->totalGlobalMem = runtime().devices[std::size_t(device)].capacity;
    prop->sharedMemPerBlock = shared_default;
    prop->sharedMemPerBlockOptin = shared_most;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    const int threads[3] = {1024, 1024, 64}, grid[3] = {2147483647, 65535, 65535};
    std::copy_n(threads, 3, prop->maxThreadsDim);
    std::copy_n(grid, 3, prop->maxGridSize);
    prop->multiProcessorCount = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    prop->concurrentKernels = prop->unifiedAddressing = prop->managedMemory = 1;
    prop->concurrentManagedAccess = prop->memoryPoolsSupported = prop->asyncEngineCount = 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  return entry("cudaDeviceGetAttribute", cudaErrorUnknown, [&] {
    if (!value) return cudaErrorInvalidValue;
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    switch (attr) {
      case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
      case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
      case cudaDevAttrMaxSharedMemoryPerBlock: *value = shared_default; break;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_most; break;
      case cudaDevAttrWarpSize: *value = 32; break;
      case cudaDevAttrMultiProcessorCount:
        *value = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
        break;
      case cudaDevAttrIntegrated:
      case cudaDevAttrPageableMemoryAccess:
      case cudaDevAttrComputeCapabilityMajor:
      case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
      case cudaDevAttrConcurrentKernels:
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrManagedMemory:
      case cudaDevAttrConcurrentManagedAccess:
      case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
      default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize(void) {
  return entry("cudaDeviceSynchronize", cudaErrorUnknown, [] {
    Lock lock = lock_runtime();
    const cudaError_t error = drain_device(lock, current_device());
    trim_pools(current_device(), false);
    return error;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return entry("cudaDeviceCanAccessPeer", cudaErrorUnknown, [&] {
    if (!can) return cudaErrorInvalidValue;
    if (!valid_device(device) || !valid_device(peer)) return cudaErrorInvalidDevice;
    *can = device != peer;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return entry("cudaDeviceEnablePeerAccess", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    if (flags) return cudaErrorInvalidValue;
    if (!valid_device(peer) || peer == current_device()) return cudaErrorInvalidDevice;
    std::uint64_t& peers = runtime().devices[std::size_t(current_device())].peers;
    if (peers >> peer & 1) return cudaErrorPeerAccessAlreadyEnabled;
    peers |= std::uint64_t(1) << peer;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return release_entry("cudaDeviceDisablePeerAccess", [&] {
    const Lock lock = lock_runtime();
    if (!valid_device(peer)) return cudaErrorInvalidDevice;
    std::uint64_t& peers = runtime().devices[std::size_t(current_device())].peers;
    if (!(peers >> peer & 1)) return cudaErrorPeerAccessNotEnabled;
    peers &= ~(std::uint64_t(1) << peer);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return entry("cudaMemGetInfo", cudaErrorUnknown, [&] {
    if (!free || !total) return cudaErrorInvalidValue;
    const Lock lock = lock_runtime();
    const Device& device = runtime().devices[std::size_t(current_device())];
    if (runtime().planning) {  // unlimited, and still a number
      *total = std::size_t(1) << 62;
      *free = *total - std::min(*total, device.used);
      return cudaSuccess;
    }
    *total = device.capacity;
    *free = free_bytes(device);
    return cudaSuccess;
  });
}
