#include "harness/devices.h"

#include <unistd.h>

#include <cstring>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/raii.h"
#include "harness/processes.h"

namespace oomlab {
namespace {

// What cudaGetDeviceCount says where there is no usable device: by number, because the host runtime needs no names for
// them. Stub library, insufficient driver, devices unavailable, no device, a system that is not ready (NVSwitch without
// its fabric manager), driver mismatch, no compatibility.
bool no_device_here(cudaError_t code) {
  switch (static_cast<int>(code)) {
    case 34:
    case 35:
    case 46:
    case 100:
    case 802:
    case 803:
    case 804: return true;
    default: return false;
  }
}

// Whoever asks for a device that is not there may have hidden it from himself.
std::string what_is_hidden() {
  std::string text;
  for (const std::string& remark : device_remarks()) text += "; " + remark;
  return text;
}

}  // namespace

void choose_device(CommandLine& line, int most_ranks, const char* asked_with, const Progress& progress) {
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    (void)cudaGetLastError();
    // The host runtime fails here for a setting that makes no sense, and says which.
    const bool says_which = std::strstr(cudaGetErrorString(code), ": ") != nullptr;
    if (code == cudaErrorInitializationError && says_which && std::strcmp(backend_name(), "host") == 0)
      throw UsageError(cudaGetErrorString(code));
    if (!no_device_here(code)) throw CudaError(code, "cudaGetDeviceCount", __FILE__, __LINE__);
    throw CannotRunHere(
        fmt::format("no CUDA device: {}; the host preset needs none{}", cudaGetErrorString(code), what_is_hidden()));
  }
  Config& config = line.config;
  const int launched = processes().size();
  if (launched > 1 && most_ranks == 1)
    throw UsageError(fmt::format(
        "no variant has several ranks, and {} processes were started: start one, or say what grid", launched));
  if (launched == 1 && config.devices_given && !config.plan && config.devices > count)
    throw UsageError(
        fmt::format("--devices {} is too many; this machine has {}{}", config.devices, count, what_is_hidden()));
  // Ranks that were asked for must have their devices; the chapter's own variants are skipped where there are too few.
  if (asked_with && !config.plan) {
    if (launched > 1 && most_ranks != launched)
      throw UsageError(fmt::format("{} ranks ({}) are not the {} processes started", most_ranks, asked_with, launched));
    if (launched == 1 && most_ranks > count)
      throw UsageError(
          fmt::format("{} ranks ({}) need as many devices; this machine has {}", most_ranks, asked_with, count));
  }
  if (!line.device_auto) {
    if (config.device >= count)
      throw UsageError(fmt::format("--device {} does not exist; this machine has {} (0 to {}){}", config.device, count,
                                   count - 1, what_is_hidden()));
    CUDA_CHECK(cudaSetDevice(config.device));
    return;
  }
  std::size_t most = 0;
  for (int device = 0; device < count; ++device) {
    const DeviceGuard guard(device);
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    progress(fmt::format("device {}: {} free of {}", device, format_bytes(free), format_bytes(total)));
    for (const DeviceProcess& process : device_processes(device)) {
      if (process.pid == static_cast<unsigned>(getpid())) continue;
      progress(fmt::format("  process {} ({}) holds {}", process.pid, process.name.empty() ? "?" : process.name,
                           process.bytes ? format_bytes(process.bytes) : "an unknown amount"));
    }
    if (free > most || device == 0) {
      most = free;
      config.device = device;
    }
  }
  for (const std::string& remark : device_remarks()) progress(remark);
  progress(fmt::format("--device auto: device {} has the most free memory", config.device));
  CUDA_CHECK(cudaSetDevice(config.device));
}

int device_of(const Config& config, int rank) {
  if (planning()) return config.device;
  int count = 1;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  return (config.device + (processes().size() > 1 ? processes().local_rank() : rank)) % count;
}

std::vector<int> devices_of_team(const Config& config, int ranks) {
  std::vector<int> devices;
  if (planning() || processes().size() > 1) return devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back(device_of(config, rank));
  return devices;
}

void say_devices(const Config& config, int ranks, const Progress& progress) {
  int count = 0;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  const auto line_of = [&](int rank) {
    const int device = device_of(config, rank);
    const DeviceGuard guard(device);
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    std::size_t others = 0;
    for (const DeviceProcess& process : device_processes(device))
      others += process.pid != static_cast<unsigned>(getpid());
    return fmt::format("rank {} has device {} (of {} visible, counted from --device {}): {} free of {}{}", rank, device,
                       count, config.device, format_bytes(free), format_bytes(total),
                       others ? fmt::format(", {} other processes on it", others) : "");
  };
  if (processes().size() > 1) {
    for (const std::string& line : on_all_processes([&] { return line_of(processes().rank()); })) progress(line);
    return;
  }
  for (int rank = 0; rank < std::min(ranks, count); ++rank) {
    try {
      progress(line_of(rank));
    } catch (const CudaError& error) {
      throw RankFailed(fmt::format("rank {}: {}", rank, error.what()), false, false);
    }
  }
}

}  // namespace oomlab
