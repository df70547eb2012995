// The machine: devices with a capacity each, what is live on them, and plan mode.

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
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

std::optional<std::uint64_t> parse_number(std::string_view digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  return error == std::errc() && end == digits.end() ? std::optional(number) : std::nullopt;
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
    const auto number = parse_number(text);
    if (!number || *number < 1 || *number > 64) bad_setting("OOMLAB_HOST_DEVICES", text, "a number from 1 to 64");
    machine.devices = static_cast<int>(*number);
  }
  const char* const memory = std::getenv("OOMLAB_HOST_MEMORY");
  machine.capacity = memory ? parse_size("OOMLAB_HOST_MEMORY", memory) : machine_memory() / 4 * 3;
  if (const char* text = std::getenv("OOMLAB_HOST_STREAMS")) {
    const std::string_view mode(text), seeded = "deferred:";
    const bool has_seed = mode.starts_with(seeded);
    const auto seed = has_seed ? parse_number(mode.substr(seeded.size())) : machine.seed;
    if (!seed || (mode != "eager" && mode != "deferred" && !has_seed))
      bad_setting("OOMLAB_HOST_STREAMS", text, "eager, deferred or deferred:SEED");
    machine.deferred = mode != "eager";
    machine.seed = *seed;
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
  r.devices.clear();
  for (int d = 0; d < machine.devices; ++d) {
    managed_set_limit(d, machine.capacity);
    r.devices.push_back({0, new_pool(r, d), new_stream(r, d, true)});
  }
}

// What only the runtime itself holds is given back, before it starts over.
void clear(Lock& lock, const char* what) {
  if (const Live now = runtime().live; now != Live{})
    throw std::logic_error(std::string(what) + " while something is live: " + describe(now));
  drain_device(lock, -1);
  destroy_default_pools(lock);
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
  clear(lock, "configure()");
  set_up(r, machine);
}

const Machine& machine() { return runtime().machine; }

void set_planning(bool on) {
  Runtime& r = runtime();
  const RuntimeScope scope;
  Lock lock(r.mutex);
  if (on == r.planning) return;
  clear(lock, "set_planning()");  // the pools' addresses are of the other kind
  r.planning = on;
  r.next_address = std::uintptr_t(1) << 60;  // no such address exists: touching it is a fault
  for (int d = 0; d < r.machine.devices; ++d) device_of(d).default_pool = new_pool(r, d);
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
  const auto counted = [](std::size_t n, const char* one) {
    return std::to_string(n) + " " + one + (n == 1 ? "" : "s");
  };
  const auto add = [&](std::size_t n, const char* one, const std::string& more = "") {
    if (n) text += (text.empty() ? "" : ", ") + counted(n, one) + more;
  };
  add(l.streams, "stream");
  add(l.events, "event");
  add(l.device_bytes, "device byte", " in " + counted(l.device_blocks, "block"));
  add(l.pinned_bytes, "pinned byte");
  add(l.pools, "pool");
  add(l.reservations, "address reservation");
  add(l.vmm_handles, "memory handle");
  add(l.blas_handles, "cuBLAS handle");
  add(l.communicators, "communicator");
  return text.empty() ? "nothing" : text;
}

void count_live(std::size_t Live::*what, int change) noexcept {
  const Lock lock = lock_runtime();
  runtime().live.*what += static_cast<std::size_t>(change);
}

void count_gemm(std::uint64_t flops) noexcept {
  const Lock lock = lock_runtime();
  count_work(current_device(), &Work::gemms);
  count_work(current_device(), &Work::gemm_flops, flops);
}
void count_work(int device, std::uint64_t Work::*what, std::uint64_t amount) { runtime().work[device].*what += amount; }
Work work() noexcept {
  const Lock lock = lock_runtime();
  return runtime().work[current_device()];
}

int device_of_this_thread() noexcept { return this_device; }
// A machine may have been replaced by one with fewer devices.
int current_device() { return this_device < runtime().machine.devices ? this_device : 0; }
Device& device_of(int number) { return runtime().devices[std::size_t(number)]; }
void require_device(int number) { require(number >= 0 && number < runtime().machine.devices, cudaErrorInvalidDevice); }

// Managed pages make room for what is charged.
static void change_used(int device, std::size_t by) {
  std::size_t& used = device_of(device).used;
  used += by;
  if (!runtime().planning) managed_set_limit(device, machine().capacity - used);
}

bool charge(int device, std::size_t bytes) {
  if (!runtime().planning && bytes > machine().capacity - device_of(device).used) return false;
  change_used(device, bytes);
  return true;
}

void charge_or_trim(Lock& lock, int device, std::size_t bytes) {
  if (charge(device, bytes)) return;
  drain_device(lock, device);
  trim_pools(device, true);
  require(charge(device, bytes), cudaErrorMemoryAllocation);
}

void refund(int device, std::size_t bytes) { change_used(device, 0 - bytes); }

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaRuntimeGetVersion(int* version) {
  return result_entry("cudaRuntimeGetVersion", cudaErrorUnknown, version, [](Lock&) { return CUDART_VERSION; });
}
cudaError_t cudaGetDeviceCount(int* count) {
  return result_entry("cudaGetDeviceCount", cudaErrorInitializationError, count,
                      [](Lock&) { return machine().devices; });
}
cudaError_t cudaGetDevice(int* device) {
  return result_entry("cudaGetDevice", cudaErrorUnknown, device, [](Lock&) { return current_device(); });
}
cudaError_t cudaSetDevice(int device) {
  return entry("cudaSetDevice", cudaErrorUnknown, [&](Lock&) {
    require_device(device);
    this_device = device;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return result_entry("cudaGetDeviceProperties", cudaErrorUnknown, properties, [&](Lock&) {
    require_device(device);
    cudaDeviceProp all = {};
    std::snprintf(all.name, sizeof all.name, "host runtime device %d", device);
    return all;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  return result_entry("cudaDeviceGetAttribute", cudaErrorUnknown, value, [&](Lock&) {
    require_device(device);
    switch (attr) {
      case cudaDevAttrMultiProcessorCount: return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
      case cudaDevAttrPageableMemoryAccess: return 0;
      case cudaDevAttrConcurrentManagedAccess: return 1;
    }
    throw Refusal{cudaErrorInvalidValue};
  });
}

cudaError_t cudaDeviceSynchronize(void) {
  return entry("cudaDeviceSynchronize", cudaErrorUnknown, [](Lock& lock) {
    const cudaError_t error = drain_device(lock, current_device());
    trim_pools(current_device(), false);
    return error;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return result_entry("cudaDeviceCanAccessPeer", cudaErrorUnknown, can, [&](Lock&) {
    require_device(device);
    require_device(peer);
    return device != peer;
  });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return entry("cudaMemGetInfo", cudaErrorUnknown, [&](Lock&) {
    require(free && total);
    constexpr std::size_t unlimited = std::size_t(1) << 62;  // plan mode: and still a number
    *total = runtime().planning ? unlimited : machine().capacity;
    const int device = current_device();
    *free = *total - std::min(*total, device_of(device).used + managed_resident(device));
  });
}
