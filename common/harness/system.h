#pragma once
// The machine that a result was measured on.

#include <cstddef>
#include <string>

namespace oomlab {

struct SystemInfo {
  std::string backend;      ///< "host" or "cuda"
  std::string device_name;  ///< as CUDA reports it
  std::string slug;         ///< folder name for results: "nvidia-h200", "host"
  int compute_major = 0, compute_minor = 0;
  std::size_t device_total = 0, device_free = 0;  ///< bytes
  std::string driver;
  std::string runtime;   ///< "CUDA 13.0", or "host runtime"
  std::string compiler;  ///< of the host code
  std::string cpu;
  unsigned threads = 0;  ///< hardware threads
  std::string version;   ///< of OOM Lab
};

/// Looks at `device`. Throws CudaError.
SystemInfo system_info(int device);

class JsonWriter;
/// As a JSON object.
void write_system(JsonWriter& json, const SystemInfo& info);
/// As JSON text (the form of system.json), ending in a newline.
std::string system_json(const SystemInfo& info);

}  // namespace oomlab
