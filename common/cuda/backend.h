#pragma once
// What the harness needs to know about where it runs. Two implementations, host/backend.cpp and device/backend.cpp, of
// which CMake links one.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oomlab {

/// "host" or "cuda".
const char* backend_name() noexcept;
/// True when memory is counted but nothing is computed (host runtime only).
bool planning() noexcept;
/// Enters plan mode: allocations get addresses and are counted, launches and copies do nothing.
/// Call before the first allocation. Returns false where this backend cannot (a real GPU).
bool enable_planning() noexcept;

/// For programs on several devices, before any CUDA call: the host runtime simulates so many, unless the user has said
/// how many (OOMLAB_HOST_DEVICES). A GPU machine has what it has.
void want_devices(int count) noexcept;
/// For programs that start others, before any CUDA call: in the host runtime, too, devices are shared with them then.
void share_devices_with_children() noexcept;
/// How many of `wanted` devices a program takes that was not told how many: all in the host runtime, which simulates
/// them. On GPUs the largest power of two that is there, but two at least: what needs more than there are says so.
int devices_by_default(int wanted) noexcept;

/// On a thread that is one of several ranks: the host runtime takes its share of the processor, no more.
void share_processor(int ranks) noexcept;

/// Ranks are in `processes` processes, of which this one has the number `process`. The host runtime's NCCL says through
/// `send`, which any thread may call, what the others must know, and what comes from them is to be given to the
/// function that this one returns, by one thread. Null on a GPU: NCCL has a network of its own.
using Deliver = std::function<void(int from, std::string_view message)>;
Deliver expect_processes(int process, int processes, std::function<void(int to, std::string message)> send);

/// What the current device has been asked to do since the program began.
struct DeviceWork {
  std::uint64_t launches = 0;      ///< of kernels
  std::uint64_t gemms = 0;         ///< calls of cuBLAS; a batch is one
  std::uint64_t gemm_flops = 0;    ///< their operations, a multiplication and an addition counted as two
  std::uint64_t copied_bytes = 0;  ///< each read once and written once
  std::uint64_t filled_bytes = 0;
  DeviceWork& operator+=(const DeviceWork& other) {
    launches += other.launches, gemms += other.gemms, gemm_flops += other.gemm_flops;
    copied_bytes += other.copied_bytes, filled_bytes += other.filled_bytes;
    return *this;
  }
  friend DeviceWork operator-(const DeviceWork& now, const DeviceWork& before) {
    return {now.launches - before.launches, now.gemms - before.gemms, now.gemm_flops - before.gemm_flops,
            now.copied_bytes - before.copied_bytes, now.filled_bytes - before.filled_bytes};
  }
  friend bool operator==(const DeviceWork&, const DeviceWork&) = default;
};
/// Nothing where this backend cannot tell: on a GPU a profiler does (nsys profile --stats=true). Nothing in plan mode:
/// a plan may leave out work that changes no peak, such as all micro-batches but the first two.
std::optional<DeviceWork> device_work() noexcept;

/// What times need that are to mean something.
struct TimingNeeds {
  double warm_up_seconds;  ///< how long a device is to work before: a GPU's clocks rise for a while
  double seconds_a_round;  ///< that are timed at least; a GPU's steps may take microseconds
  int reference_edge;      ///< of the square product by which timing.h tells how fast the machine is just now
};
/// Of this backend.
TimingNeeds timing_needs() noexcept;

/// For the scope of it, a profiler's timeline has a range of this name on this thread (NVTX). Free where there is no
/// profiler, and in the host runtime.
class NamedRange {
 public:
  explicit NamedRange(const char* name) noexcept { begin(name); }
  ~NamedRange() { end(); }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;
  /// The two ends, for those that are not a scope. Ranges of a thread nest.
  static void begin(const char* name) noexcept;
  static void end() noexcept;
};

/// A process that holds memory of a device, as the driver reports it.
struct DeviceProcess {
  unsigned pid;
  std::size_t bytes;  // 0 when the driver does not say
  std::string name;
};
/// Who else holds memory of `device` (NVML, loaded at run time). Empty where NVML is absent or silent.
std::vector<DeviceProcess> device_processes(int device);
/// What a reader has to know beside the devices that this process sees, a line each: slices of MIG with their memory,
/// what CUDA_VISIBLE_DEVICES hides, and that a driver lends host memory where it should refuse (WSL). Nothing in the
/// host runtime.
std::vector<std::string> device_remarks();
/// Whether this process may take all memory of `device` but `leave` bytes: no other process holds memory of it, no
/// display needs it, and a driver has room for kernels that it loads when they are first used. Where nobody can tell:
/// false.
bool may_fill_device(int device, std::size_t leave);

/// Bytes of a page of managed memory in the host runtime; a GPU moves larger and smaller pieces.
inline constexpr std::size_t kManagedPage = std::size_t(64) << 10;
/// Bytes of managed memory that leave a device together where it is short: a page of the host runtime, 2 MiB on a GPU
/// (a root chunk of NVIDIA's driver, uvm_pmm_gpu.h of its open kernel modules).
std::size_t managed_piece() noexcept;
/// What managed memory did since the last call: faults (of the host and of devices), and bytes that migrated.
struct ManagedTraffic {
  std::uint64_t faults = 0, bytes_to_device = 0, bytes_to_host = 0;
  std::uint64_t bytes_prefetched = 0;  ///< part of bytes_to_device: asked for by cudaMemPrefetchAsync
};
/// For the scope of it managed memory is watched. On a GPU that is CUPTI's work, which makes faults slower: for when
/// nothing is timed. One at a time.
class ManagedWatch {
 public:
  ManagedWatch();
  ~ManagedWatch();
  ManagedWatch(const ManagedWatch&) = delete;
  ManagedWatch& operator=(const ManagedWatch&) = delete;
};
/// Of what has ended on the device. Nothing where it is not watched, or cannot be.
std::optional<ManagedTraffic> take_managed_traffic() noexcept;
/// Whose figures these are, a line for the reader.
const char* managed_traffic_source() noexcept;
/// The driver's version for the banner and the JSON, for example "580.65", or "host runtime".
std::string driver_version();

}  // namespace oomlab
