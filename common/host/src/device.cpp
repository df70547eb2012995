// The machine: devices with a capacity each, what is live on them, and plan mode.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "runtime.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace oomlab::host {
namespace {

constinit thread_local int this_device = 0;

// All of a text is a number.
template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  return error == std::errc() && end == text.end();
}

// "8GiB", "1.5MiB", "4096".
bool parse_size(std::string_view text, std::size_t& bytes) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  constexpr std::string_view units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  const auto unit = std::ranges::find(units, std::string_view(end, text.end()));
  if (error != std::errc() || !(number > 0) || number > 1e18 || unit == std::end(units)) return false;
  bytes = static_cast<std::size_t>(number * static_cast<double>(std::size_t(1) << 10 * (unit - units)));
  return true;
}

#ifdef _OPENMP
constexpr std::size_t least_stack = 512;  // KiB

// "8M", "512 k", "65536": as OpenMP reads OMP_STACKSIZE. What it would not take, it says itself, and ignores.
std::size_t kib_of_stack(std::string_view text) {
  std::size_t number = 0;
  while (text.starts_with(' ')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  std::string_view unit(end, text.end());
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const char first = unit.empty() ? 'k' : static_cast<char>(std::tolower(unit[0]));
  if (error != std::errc()) return least_stack;
  return first == 'b' ? number >> 10 : first == 'm' ? number << 10 : first == 'g' ? number << 20 : number;
}
#endif

std::size_t machine_memory() {
  auto bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  std::size_t limit = 0;  // of the container, where there is one
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) bytes = std::min(bytes, limit);
  return bytes;
}

// `accept(value)`, of a variable that is set, says whether the value makes sense.
template <class Accept>
void read_setting(const char* name, const char* allowed, Accept accept) {
  const char* const value = std::getenv(name);
  if (value && !accept(std::string_view(value)))
    throw std::invalid_argument(std::string(name) + "='" + value + "' is not " + allowed);
}

void read_environment(Machine& m) {
  read_setting("OOMLAB_HOST_DEVICES", "a number from 1 to 64", [&](std::string_view text) {
    return parse_number(text, m.devices) && m.devices >= 1 && m.devices <= most_devices;
  });
  m.capacity = machine_memory() / 4 * 3;
  read_setting("OOMLAB_HOST_MEMORY", "a size such as 512MiB or 8GiB",
               [&](std::string_view text) { return parse_size(text, m.capacity); });
  read_setting("OOMLAB_HOST_STREAMS", "eager, deferred or deferred:SEED", [&](std::string_view text) {
    constexpr std::string_view seeded = "deferred:";
    m.deferred = text != "eager";
    return !m.deferred || text == "deferred" ||
           (text.starts_with(seeded) && parse_number(text.substr(seeded.size()), m.seed));
  });
  read_setting("OOMLAB_HOST_NCCL", m.deferred ? "buffered, with deferred streams" : "buffered or rendezvous",
               [&](std::string_view text) {
                 m.rendezvous = text == "rendezvous";
                 return text == "buffered" || (m.rendezvous && !m.deferred);
               });
  read_setting("OOMLAB_HOST_SHARED", "the name of a file, or children",
               [&](std::string_view text) { return !(m.shared = text).empty(); });
  read_setting("OOMLAB_HOST_CONTEXT", "a size such as 141MiB",
               [&](std::string_view text) { return parse_size(text, m.context); });
#ifdef _OPENMP
  // OpenMP would crash, or end the program, without a word that helps.
  read_setting("OMP_NUM_THREADS", "a number of threads up to 1024", [](auto) { return omp_get_max_threads() <= 1024; });
  read_setting("OMP_STACKSIZE", "a stack of 512K or more", [](auto text) { return kib_of_stack(text) >= least_stack; });
  if (rlimit limit{}; !getrlimit(RLIMIT_STACK, &limit) && limit.rlim_cur / 1024 < least_stack)
    throw std::invalid_argument("stacks of " + std::to_string(limit.rlim_cur / 1024) +
                                " KiB (ulimit -s) are too small; threads need 512");
#endif
}

void set_up(Runtime& r, const Machine& machine) {
  r.machine = machine;
  r.next_address = std::uintptr_t(1) << 60;  // no such address exists: touching it is a fault
  r.random.seed(machine.seed);
  r.streams.clear();
  r.devices.clear();
  for (int d = 0; d < machine.devices; ++d) {
    managed_set_limit(d, machine.capacity);
    r.devices.push_back({0, new_pool(r, d), new_stream(r, d, true)});
  }
  shared_join(machine);
}

Live live_now() {
  const Runtime& r = runtime();
  Live now = r.counted;
  for (const auto& [id, stream] : r.streams) now.streams += stream->alive;
  now.streams -= r.devices.size();  // each has a default stream and a default pool
  now.pools = r.pools.size() - r.devices.size();
  now.events = r.events.size();
  for (const auto& [address, block] : r.blocks) {
    if (block.kind == Kind::pinned) now.pinned_bytes += block.size;
    if (block.kind == Kind::pinned || block.kind == Kind::mapped) continue;
    now.device_bytes += block.charged();
    ++now.device_blocks;
  }
  return now;
}

// What only the runtime itself holds is given back first.
void start_over(const char* call, const Machine& machine, bool planning) {
  const RuntimeScope scope;
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  if (const Live now = live_now(); now != Live{})
    throw std::logic_error(std::string(call) + " while something is live: " + describe(now));
  drain_device(-1);
  destroy_default_pools();
  shared_leave();
  r.planning = planning;
  set_up(r, machine);
}

}  // namespace

Runtime::Runtime() {
  Machine first;
  try {
    read_environment(first);
    shared_join(first);
  } catch (const std::invalid_argument& why) {
    no_machine = std::string("initialization error: ") + why.what();
    first = {};
  }
  set_up(*this, first);
}

Runtime& runtime() {
  static Runtime& instance = *[] {
    const RuntimeScope scope;
    return new Runtime;  // never destroyed: destructors of static objects may still free device memory
  }();
  return instance;
}

void configure(const Machine& machine) {
  if (machine.devices < 1 || machine.devices > most_devices)
    throw std::invalid_argument("a machine has 1 to 64 devices, not " + std::to_string(machine.devices));
  start_over("configure()", machine, runtime().planning);
}
const Machine& machine() { return runtime().machine; }

void set_planning(bool on) {
  if (on != runtime().planning) start_over("set_planning()", machine(), on);
}
bool planning() noexcept { return runtime().planning; }

Live live() noexcept {
  const std::lock_guard lock(runtime().mutex);
  return live_now();
}

std::string describe(const Live& l) {
  std::string text;
  const auto add = [&](std::size_t n, const char* one, const char* before = ", ") {
    if (n) text += (text.empty() ? "" : before) + std::to_string(n) + " " + one + (n == 1 ? "" : "s");
  };
  add(l.streams, "stream");
  add(l.events, "event");
  add(l.device_bytes, "device byte");
  add(l.device_blocks, "block", " in ");
  add(l.pinned_bytes, "pinned byte");
  add(l.pools, "pool");
  add(l.reservations, "address reservation");
  add(l.vmm_handles, "memory handle");
  add(l.blas_handles, "cuBLAS handle");
  add(l.communicators, "communicator");
  return text.empty() ? "nothing" : text;
}

void count_live(std::size_t Live::*what, int change) noexcept {
  const std::lock_guard lock(runtime().mutex);
  runtime().counted.*what += static_cast<std::size_t>(change);
}

void count_gemm(std::uint64_t flops) noexcept {
  const std::lock_guard lock(runtime().mutex);
  Work& work = runtime().work[current_device()];
  ++work.gemms;
  work.gemm_flops += flops;
}
Work work() noexcept {
  const std::lock_guard lock(runtime().mutex);
  return runtime().work[current_device()];
}

int device_of_this_thread() noexcept { return this_device; }
// A machine may have been replaced by one with fewer devices.
int current_device() { return this_device < runtime().machine.devices ? this_device : 0; }
Device& device_of(int number) { return runtime().devices[std::size_t(number)]; }
void require_device(int number) { require(number >= 0 && number < runtime().machine.devices, cudaErrorInvalidDevice); }

bool charge(int device, std::size_t bytes) {
  std::size_t& used = device_of(device).used;
  if (!runtime().planning) {
    need_context(device);
    if (bytes > machine().capacity - used || !shared_take(device, bytes)) return false;
    managed_set_limit(device, machine().capacity - used - bytes);  // managed pages have the rest
  }
  used += bytes;
  return true;
}
void refund(int device, std::size_t bytes) {
  std::size_t& used = device_of(device).used;
  used -= bytes;
  if (runtime().planning) return;
  shared_give(device, bytes);
  managed_set_limit(device, machine().capacity - used);
}
void need_context(int device) {
  Device& d = device_of(device);
  if (d.has_context || runtime().planning) return;
  d.has_context = true;  // before, or this would go round
  if (machine().context == 0 || charge(device, machine().context)) return;
  d.has_context = false;
  throw Refusal{cudaErrorMemoryAllocation};
}

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaRuntimeGetVersion(int* version) {
  return result_entry("cudaRuntimeGetVersion", version, [] { return CUDART_VERSION; });
}
cudaError_t cudaGetDeviceCount(int* count) {
  return result_entry<cudaErrorInitializationError>("cudaGetDeviceCount", count, [] { return machine().devices; });
}
cudaError_t cudaGetDevice(int* device) {
  return result_entry("cudaGetDevice", device, [] { return current_device(); });
}
cudaError_t cudaSetDevice(int device) {
  return entry("cudaSetDevice", [&] {
    require_device(device);
    need_context(device);
    this_device = device;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return result_entry("cudaGetDeviceProperties", properties, [&] {
    require_device(device);
    cudaDeviceProp all = {};
    std::snprintf(all.name, sizeof all.name, "host runtime device %d", device);
    return all;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  return result_entry("cudaDeviceGetAttribute", value, [&] {
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
  return entry("cudaDeviceSynchronize", [] {
    drain_device(current_device());
    trim_pools(current_device(), false);
  });
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return result_entry("cudaDeviceCanAccessPeer", can, [&] {
    require_device(device);
    require_device(peer);
    return device != peer;
  });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return entry("cudaMemGetInfo", [&] {
    require(free && total);
    constexpr std::size_t unlimited = std::size_t(1) << 62;  // plan mode: and still a number
    *total = runtime().planning ? unlimited : machine().capacity;
    const int device = current_device();
    need_context(device);
    const std::size_t others = runtime().planning ? 0 : shared_by_others(device);
    *free = *total - std::min(*total, device_of(device).used + managed_resident(device) + others);
  });
}
