#include "harness/system.h"

#include <fmt/format.h>

#include <cctype>
#include <fstream>
#include <string_view>
#include <thread>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/raii.h"
#include "plan/json_writer.h"

namespace oomlab {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  info.exceptions(std::ios::badbit);  // out of host memory is not "unknown"
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) {
      const auto colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "unknown";
}

// "NVIDIA H200" → "nvidia-h200": lower case, runs of anything else become one dash.
std::string slug_of(std::string_view name) {
  std::string slug;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      slug += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  return slug.empty() ? "unknown" : slug;
}

}  // namespace

SystemInfo system_info(int device) {
  SystemInfo info;
  info.backend = backend_name();
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  info.device_name = properties.name;
  info.slug = info.backend == "host" ? "host" : slug_of(info.device_name);
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  {
    const DeviceGuard guard(device);
    CUDA_CHECK(cudaMemGetInfo(&info.device_free, &info.device_total));
  }
  info.driver = driver_version();
  int runtime = 0;
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  info.runtime =
      info.backend == "host" ? "host runtime" : fmt::format("CUDA {}.{}", runtime / 1000, runtime % 1000 / 10);
  info.compiler = "g++ " __VERSION__;
  info.cpu = cpu_name();
  info.threads = std::thread::hardware_concurrency();
  info.version = OOMLAB_VERSION;
  return info;
}

void write_system(JsonWriter& json, const SystemInfo& info) {
  json.begin_object().member("backend", info.backend).member("device", info.device_name).member("slug", info.slug);
  json.member("compute_capability", fmt::format("{}.{}", info.compute_major, info.compute_minor));
  json.member("device_total_bytes", info.device_total).member("device_free_bytes", info.device_free);
  json.member("driver", info.driver).member("runtime", info.runtime).member("compiler", info.compiler);
  json.member("cpu", info.cpu).member("hardware_threads", info.threads).member("oomlab_version", info.version);
  json.end_object();
}

std::string system_json(const SystemInfo& info) {
  JsonWriter json;
  write_system(json, info);
  return json.text();
}

}  // namespace oomlab
