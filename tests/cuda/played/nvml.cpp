// NVML, played: two GPUs, the second in three slices, of which one is not there. Only what nvml.cpp loads.
#include <cstdio>
#include <cstring>

namespace {
struct Device {
  const char* name;
  unsigned long long total, free;
  unsigned mig;
} devices[] = {{"GPU A", 24ull << 30, 1ull << 30, 0}, {"GPU B", 40ull << 30, 40ull << 30, 1}},
  slices[] = {{"GPU B MIG 1g.5gb", 4864ull << 20, 4000ull << 20, 0},
              {"GPU B MIG 2g.10gb", 9728ull << 20, 9728ull << 20, 0}};
struct Memory {
  unsigned long long total, free, used;
};
constexpr int kNotFound = 6;
}  // namespace

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 2, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** device) { return *device = &devices[i], 0; }
int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  return std::snprintf(name, size, "%s", static_cast<Device*>(device)->name), 0;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  return std::snprintf(uuid, size, "UUID of %s", static_cast<Device*>(device)->name), 0;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  const Device& d = *static_cast<Device*>(device);
  return *memory = {d.total, d.free, d.total - d.free}, 0;
}
int nvmlDeviceGetMigMode(void* device, unsigned* mode, unsigned* pending) {
  return *mode = *pending = static_cast<Device*>(device)->mig, 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) { return *count = 3, 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void*, unsigned i, void** device) {
  if (i == 1) return kNotFound;
  return *device = &slices[i / 2], 0;
}
}
