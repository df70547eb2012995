#include "nvml.h"

#include <algorithm>
#include <cstdio>

namespace oomlab {
namespace {

std::string gib(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

}  // namespace

std::vector<ListedDevice> listed_devices(const Nvml& nvml) {
  std::vector<ListedDevice> all;
  if (!nvml.ready()) return all;
  struct Memory {
    unsigned long long total, free, used;
  };
  using Device = void*;
  const auto count_of = nvml.load<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  const auto device_at = nvml.load<int (*)(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
  const auto name_of = nvml.load<int (*)(Device, char*, unsigned)>("nvmlDeviceGetName");
  const auto uuid_of = nvml.load<int (*)(Device, char*, unsigned)>("nvmlDeviceGetUUID");
  const auto memory_of = nvml.load<int (*)(Device, Memory*)>("nvmlDeviceGetMemoryInfo");
  // Absent before MIG was.
  const auto mode_of = nvml.load<int (*)(Device, unsigned*, unsigned*)>("nvmlDeviceGetMigMode");
  const auto most_slices = nvml.load<int (*)(Device, unsigned*)>("nvmlDeviceGetMaxMigDeviceCount");
  const auto slice_at = nvml.load<int (*)(Device, unsigned, Device*)>("nvmlDeviceGetMigDeviceHandleByIndex");
  if (!count_of || !device_at || !name_of || !uuid_of || !memory_of) return all;
  const auto add = [&](Device device, bool slice) {
    char name[96] = {}, uuid[96] = {};
    Memory memory{};
    if (name_of(device, name, sizeof name) != 0 || uuid_of(device, uuid, sizeof uuid) != 0 ||
        memory_of(device, &memory) != 0)
      return false;
    all.push_back({name, uuid, static_cast<std::size_t>(memory.total), static_cast<std::size_t>(memory.free), slice});
    return true;
  };
  unsigned count = 0;
  if (count_of(&count) != 0) return all;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    if (device_at(i, &device) != 0 || !add(device, false)) continue;
    unsigned mode = 0, pending = 0, slices = 0;
    if (!mode_of || !most_slices || !slice_at || mode_of(device, &mode, &pending) != 0 || mode != 1) continue;
    all.back().sliced = true;
    if (most_slices(device, &slices) != 0) continue;
    for (unsigned s = 0; s < slices; ++s)
      if (Device slice = nullptr; slice_at(device, s, &slice) == 0) add(slice, true);
  }
  return all;
}

std::vector<std::string> remarks_on(const std::vector<ListedDevice>& devices, int seen, const char* visible, bool wsl) {
  std::vector<std::string> lines;
  int usable = 0;
  for (const ListedDevice& d : devices) {
    usable += !d.sliced;
    if (d.sliced)
      lines.push_back(d.name + ", " + gib(d.total) + ", is in slices (MIG), and a process gets one of them:");
    else if (d.slice)
      lines.push_back("  " + d.name + ": " + gib(d.free) + " free of " + gib(d.total) + "  " + d.uuid);
  }
  if (visible)
    lines.push_back("CUDA_VISIBLE_DEVICES=" + std::string(visible) + ": this process sees " + std::to_string(seen) +
                    (usable ? " of " + std::to_string(usable) + " devices" : ""));
  if (wsl)
    lines.push_back(
        "WSL: the Windows driver may lend host memory instead of refusing (CUDA - Sysmem Fallback Policy in its "
        "control "
        "panel), so too much memory shows as a slow run, not as an error");
  return lines;
}

bool is_wsl(const std::string& kernel_version) {
  return kernel_version.find("microsoft") != std::string::npos || kernel_version.find("Microsoft") != std::string::npos;
}

}  // namespace oomlab
