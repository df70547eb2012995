#include "cuda/backend.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "cuda/check.h"
#include "nvml.h"

namespace oomlab {

const char* backend_name() noexcept { return "cuda"; }
bool planning() noexcept { return false; }
bool enable_planning() noexcept { return false; }

namespace {

nvtxDomainHandle_t nvtx() noexcept {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("oomlab");
  return domain;
}

}  // namespace

void want_devices(int) noexcept {}
void share_devices_with_children() noexcept {}  // they are anyway
std::optional<DeviceWork> device_work() noexcept { return std::nullopt; }
// A product of 384 x 384 would measure its launch; this one works for 0.3 ms on an H100, 2 ms on a T4.
// The clocks of an H100 are up within some ten milliseconds of work, and each variant has three rounds.
TimingNeeds timing_needs() noexcept { return {0.1, 0.1, 2048}; }
void NamedRange::begin(const char* name) noexcept {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = sizeof range;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  (void)nvtxDomainRangePushEx(nvtx(), &range);
}
void NamedRange::end() noexcept { (void)nvtxDomainRangePop(nvtx()); }
int devices_by_default(int wanted) noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) (void)cudaGetLastError();  // said where a device is chosen
  int devices = 2;
  while (devices * 2 <= std::min(wanted, count)) devices *= 2;
  return devices;
}
void share_processor(int) noexcept {}
Deliver expect_processes(int, int, std::function<void(int, std::string)>) { return nullptr; }
std::vector<DeviceProcess> device_processes(int device) {
  std::vector<DeviceProcess> result;
  const Nvml nvml;
  if (!nvml.ready()) return result;
  char bus[32] = {};
  CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  void* handle = nullptr;
  const auto by_bus = nvml.load<int (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
  const auto processes = nvml.load<int (*)(void*, unsigned*, NvmlProcess*)>("nvmlDeviceGetComputeRunningProcesses_v3");
  if (!by_bus || !processes || by_bus(bus, &handle) != 0) return result;
  NvmlProcess list[64];
  unsigned count = 64;
  if (processes(handle, &count, list) != 0) return result;
  for (unsigned i = 0; i < count; ++i) {
    std::string name;
    std::ifstream comm("/proc/" + std::to_string(list[i].pid) + "/comm");
    std::getline(comm, name);
    const bool known = list[i].used_bytes != ~0ull;  // NVML's "not available"
    result.push_back({list[i].pid, known ? static_cast<std::size_t>(list[i].used_bytes) : 0, name});
  }
  return result;
}

std::vector<std::string> device_remarks() {
  std::string version;
  std::ifstream file("/proc/version");
  std::getline(file, version);
  int seen = 0;
  if (cudaGetDeviceCount(&seen) != cudaSuccess) (void)cudaGetLastError();
  return remarks_on(listed_devices(Nvml()), seen, std::getenv("CUDA_VISIBLE_DEVICES"), is_wsl(version));
}

bool may_fill_device(int device, std::size_t leave) {
  constexpr std::size_t kForKernels = std::size_t(32) << 20;  // those of one chapter, and cuBLAS's, are some MiB
  if (leave < kForKernels) return false;
  int shows_a_screen = 0;  // then kernels may not run for long
  CUDA_CHECK(cudaDeviceGetAttribute(&shows_a_screen, cudaDevAttrKernelExecTimeout, device));
  CUDA_CHECK(cudaFree(nullptr));  // this process has a context, so it is in the list, in a container by another number
  return !shows_a_screen && device_processes(device).size() == 1;
}

std::size_t managed_piece() noexcept { return std::size_t(2) << 20; }

std::string driver_version() {
  const Nvml nvml;
  char version[96] = {};
  if (nvml.ready()) {
    const auto get = nvml.load<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
    if (get && get(version, sizeof version) == 0) return version;
  }
  int number = 0;
  CUDA_CHECK(cudaDriverGetVersion(&number));
  return "CUDA " + std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

}  // namespace oomlab
