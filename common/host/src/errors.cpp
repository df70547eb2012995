// Error codes, the thread's last error, and the fault seam.

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "runtime.h"

namespace oomlab::host {
namespace {

constinit thread_local cudaError_t last_error = cudaSuccess;
constinit thread_local int runtime_depth = 0;

constinit std::atomic<bool> armed{false};
constinit std::atomic<std::uint64_t> calls{0}, first{0}, last{0};  // seen; the numbers of those that fail
constinit std::atomic<int> only_device{-1};
constinit std::atomic<const char*> site{""};
constinit std::atomic<void (*)(std::uint64_t) noexcept> watcher{nullptr};

// Armed from the environment before main().
[[maybe_unused]] const bool armed_by_environment = [] {
  const char* text = std::getenv("OOMLAB_FAULT");
  char* end = nullptr;
  const std::uint64_t k = text ? std::strtoull(text, &end, 10) : 0;
  if (k) arm_fault(k, *end == ':');
  return k != 0;
}();

struct Named {
  cudaError_t code;
  const char *name, *text;
};
constexpr Named names[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};
const Named& find_name(cudaError_t code) noexcept {
  static constexpr Named unknown{cudaErrorUnknown, "unrecognized error code", "unrecognized error code"};
  const auto found = std::ranges::find(names, code, &Named::code);
  return found == std::end(names) ? unknown : *found;
}

}  // namespace

cudaError_t set_last_error(cudaError_t error) noexcept {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void arm_fault(std::uint64_t k, bool from_then_on, int device) noexcept {
  armed = false;
  only_device = device;
  calls = 0;
  first = k;
  last = from_then_on ? UINT64_MAX : k;
  site = "";
  armed = true;
}
void disarm_fault() noexcept { armed = false; }
void watch_fault_calls(void (*watch)(std::uint64_t) noexcept) noexcept { watcher = watch; }
std::uint64_t fault_calls() noexcept { return calls; }
const char* fault_site() noexcept { return site; }

bool fault_point(const char* call) noexcept {
  if (!armed.load(std::memory_order_relaxed) || runtime_depth > 0) return false;
  if (const int device = only_device; device >= 0 && device != device_of_this_thread()) return false;
  const std::uint64_t number = ++calls;
  if (const auto watch = watcher.load(std::memory_order_relaxed)) watch(number);
  if (number == first) site = call;
  return number >= first && number <= last;
}

RuntimeScope::RuntimeScope() noexcept { ++runtime_depth; }
RuntimeScope::~RuntimeScope() { --runtime_depth; }
bool inside_runtime() noexcept { return runtime_depth > 0; }

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaGetLastError(void) { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError(void) { return last_error; }

const char* cudaGetErrorName(cudaError_t error) { return find_name(error).name; }
const char* cudaGetErrorString(cudaError_t error) {
  const std::string& why = runtime().no_machine.empty() ? runtime().not_shared : runtime().no_machine;
  return error == cudaErrorInitializationError && !why.empty() ? why.c_str() : find_name(error).text;
}
