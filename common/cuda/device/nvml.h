#pragma once
// NVIDIA's management library, as far as it is needed: who holds memory, which devices there are, also those that this
// process does not see, and slices of MIG. Loaded at run time, so that a chapter starts on a machine that has none.
// Declared as in nvml.h, stable since NVML 11. No CUDA here: the tests of the host build play the library.

#include <dlfcn.h>

#include <cstddef>
#include <string>
#include <vector>

namespace oomlab {

struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

class Nvml {
 public:
  explicit Nvml(const char* library = "libnvidia-ml.so.1") : library_(dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) return;
    const auto init = load<int (*)()>("nvmlInit_v2");
    ready_ = init && init() == 0;
  }
  ~Nvml() {
    if (ready_) {
      if (const auto shutdown = load<int (*)()>("nvmlShutdown")) shutdown();
    }
    if (library_) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  bool ready() const { return ready_; }
  template <class F>
  F load(const char* name) const {
    return reinterpret_cast<F>(dlsym(library_, name));
  }

 private:
  void* library_;
  bool ready_ = false;
};

/// A GPU of this machine, or a slice of one (MIG), which CUDA takes for a device of its own.
struct ListedDevice {
  std::string name, uuid;
  std::size_t total = 0, free = 0;  ///< bytes
  bool slice = false;               ///< of the GPU before it in the list
  bool sliced = false;              ///< a GPU of which only slices can be used
};
/// All of them, whatever CUDA_VISIBLE_DEVICES says, in the order of their slots. None where NVML is absent or silent.
std::vector<ListedDevice> listed_devices(const Nvml& nvml);

/// What a reader has to know of the machine's devices beside those that CUDA shows, a line each: slices, what is
/// hidden, and that a driver lends host memory. `seen` devices are visible; `visible` is CUDA_VISIBLE_DEVICES or null.
std::vector<std::string> remarks_on(const std::vector<ListedDevice>& devices, int seen, const char* visible, bool wsl);
/// True under Windows' Linux: the system says so of itself.
bool is_wsl(const std::string& kernel_version);

}  // namespace oomlab
