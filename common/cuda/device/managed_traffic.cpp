// Faults and migrations of managed memory, as CUPTI counts them.

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/device/paging_counters.h"

namespace oomlab {
namespace {

using namespace cupti;

std::mutex mutex;  // CUPTI hands buffers over on threads of its own
ManagedTraffic counted;
bool watching = false;

int (*next_record)(std::uint8_t* buffer, std::size_t valid, const CounterRecord** record) = nullptr;

void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  constexpr std::size_t kBytes = std::size_t(1) << 20, kAlignment = 8;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBytes));
  *size = *buffer ? kBytes : 0;
  *most_records = 0;  // as many as fit
}

void take_buffer(void* /*context*/, std::uint32_t /*stream*/, std::uint8_t* buffer, std::size_t /*size*/,
                 std::size_t valid) {
  const std::lock_guard lock(mutex);
  for (const CounterRecord* record = nullptr; valid && next_record(buffer, valid, &record) == kSuccess;)
    count(*record, counted);
  std::free(buffer);
}

class Cupti {
 public:
  Cupti() {
    const std::string name = "libcupti.so." + std::to_string(CUDART_VERSION / 1000);
    for (const char* folder : {"", "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/"})
      if (!library_) library_ = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    using Register = int (*)(decltype(&give_buffer), decltype(&take_buffer));
    const auto callbacks = load<Register>("cuptiActivityRegisterCallbacks");
    next_record = load<decltype(next_record)>("cuptiActivityGetNextRecord");
    configure_ = load<decltype(configure_)>("cuptiActivityConfigureUnifiedMemoryCounter");
    enable_ = load<decltype(enable_)>("cuptiActivityEnable");
    disable_ = load<decltype(disable_)>("cuptiActivityDisable");
    flush_ = load<decltype(flush_)>("cuptiActivityFlushAll");
    ready_ = callbacks && next_record && configure_ && enable_ && disable_ && flush_ &&
             callbacks(give_buffer, take_buffer) == kSuccess;
  }
  /// False where it does not count: a device without page faults, or a profiler that is there already.
  bool begin() {
    if (!ready_) return false;
    CounterConfig counters[4];
    for (int i = 0; i < 4; ++i) counters[i] = {kScopeOneDevice, kToDevice + i, 0, 1};
    return configure_(counters, 4) == kSuccess && enable_(kUnifiedMemoryRecord) == kSuccess;
  }
  void flush() { (void)flush_(kFlushAll); }
  void end() {
    flush();
    (void)disable_(kUnifiedMemoryRecord);
  }

 private:
  template <class F>
  F load(const char* name) const {
    return library_ ? reinterpret_cast<F>(dlsym(library_, name)) : nullptr;
  }
  void* library_ = nullptr;  // stays: its threads may be at work until the process ends
  bool ready_ = false;
  int (*configure_)(CounterConfig*, std::uint32_t) = nullptr;
  int (*enable_)(int) = nullptr;
  int (*disable_)(int) = nullptr;
  int (*flush_)(std::uint32_t) = nullptr;
};

Cupti& the_cupti() {
  static Cupti cupti;
  return cupti;
}

}  // namespace

ManagedWatch::ManagedWatch() { watching = the_cupti().begin(); }
ManagedWatch::~ManagedWatch() {
  if (watching) the_cupti().end();
  watching = false;
}

std::optional<ManagedTraffic> take_managed_traffic() noexcept {
  if (!watching) return std::nullopt;
  the_cupti().flush();
  const std::lock_guard lock(mutex);
  return std::exchange(counted, {});
}

const char* managed_traffic_source() noexcept {
  return "faults (in groups) and what moves are counted by CUPTI; where it is not found, or another profiler uses it, "
         "they are left out";
}

}  // namespace oomlab
