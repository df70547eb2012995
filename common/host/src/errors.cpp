// Error codes, the thread's last error, and the fault seam.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "runtime.h"

namespace oomlab::host {
namespace {

constinit thread_local cudaError_t last_error = cudaSuccess;
constinit thread_local int runtime_depth = 0;

enum class Arm { off, counting, once, onwards };
constinit std::atomic<Arm> arm{Arm::off};
constinit std::atomic<std::uint64_t> calls{0}, target{0};
constinit std::atomic<int> only_device{-1};
constinit std::atomic<const char*> site{""};

void rearm(Arm how, std::uint64_t k) noexcept {
  arm = Arm::off;
  calls = 0;
  target = k;
  site = "";
  arm = how;
}

// Armed from the environment before main().
[[maybe_unused]] const bool armed_by_environment = [] {
  const char* text = std::getenv("OOMLAB_FAULT");
  char* end = nullptr;
  const std::uint64_t k = text ? std::strtoull(text, &end, 10) : 0;
  if (k) rearm(*end == ':' ? Arm::onwards : Arm::once, k);
  return k != 0;
}();

struct Named {
  int code;
  const char *name, *text;
};
constexpr Named names[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {304, "cudaErrorOperatingSystem", "OS call failed or operation not supported on this OS"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {705, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {800, "cudaErrorNotPermitted", "operation not permitted"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {999, "cudaErrorUnknown", "unknown error"},
};
const Named* find_name(int code) noexcept {
  for (const Named& named : names)
    if (named.code == code) return &named;
  return nullptr;
}

}  // namespace

cudaError_t set_last_error(cudaError_t error) noexcept {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Every call fails when the environment describes no machine; cudaGetErrorString() says why.
char no_machine[256] = "";

cudaError_t error_of_current_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  } catch (const std::invalid_argument& why) {
    static std::once_flag once;
    std::call_once(once, [&] { std::snprintf(no_machine, sizeof no_machine, "initialization error: %s", why.what()); });
    return cudaErrorInitializationError;
  } catch (...) {
    return cudaErrorUnknown;
  }
}

void arm_fault(std::uint64_t k, bool from_then_on, int device) noexcept {
  only_device = device;
  rearm(from_then_on ? Arm::onwards : Arm::once, k);
}
void arm_counting() noexcept {
  only_device = -1;
  rearm(Arm::counting, 0);
}
void disarm_fault() noexcept { arm = Arm::off; }
std::uint64_t fault_calls() noexcept { return calls; }
const char* fault_site() noexcept { return site; }

bool fault_point(const char* call) noexcept {
  const Arm how = arm.load(std::memory_order_relaxed);
  if (how == Arm::off || runtime_depth > 0) return false;
  if (const int device = only_device; device >= 0 && device != device_of_this_thread()) return false;
  const std::uint64_t number = ++calls;
  if (how == Arm::counting) return false;
  if (number != target && !(how == Arm::onwards && number > target)) return false;
  const char* none = "";
  if (number == target) site.compare_exchange_strong(none, call);
  return true;
}

RuntimeScope::RuntimeScope() noexcept { ++runtime_depth; }
RuntimeScope::~RuntimeScope() { --runtime_depth; }
bool inside_runtime() noexcept { return runtime_depth > 0; }

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaGetLastError(void) { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError(void) { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  const Named* named = find_name(error);
  return named ? named->name : "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  const Named* named = find_name(error);
  if (error == cudaErrorInitializationError && oomlab::host::no_machine[0]) return oomlab::host::no_machine;
  return named ? named->text : "unrecognized error code";
}
