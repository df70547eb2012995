#pragma once
// What the driver tells about managed memory: the few declarations of cupti_activity.h that it takes. CUPTI belongs to
// the toolkit, so it is loaded where it is found, and a chapter starts without it. tests/cuda compares this with the
// header.

#include <cstdint>

#include "cuda/backend.h"

namespace oomlab::cupti {

inline constexpr int kSuccess = 0, kUnifiedMemoryRecord = 25, kFlushAll = 1;
inline constexpr std::uint32_t kScopeOneDevice = 1;
/// CUpti_ActivityUnifiedMemoryCounterKind, and the cause of a migration that the program has asked for.
inline constexpr int kToDevice = 1, kToHost = 2, kHostFault = 3, kDeviceFaults = 4, kAskedFor = 1;

/// CUpti_ActivityUnifiedMemoryCounterConfig.
struct CounterConfig {
  std::uint32_t scope;
  int kind;
  std::uint32_t device, enable;
};
/// The beginning of CUpti_ActivityUnifiedMemoryCounter2 and 3.
struct CounterRecord {
  int kind, counter;
  std::uint64_t value;  ///< bytes; of device faults, how many groups of them; of a host's, an address
  std::uint64_t start, end, address;
  std::uint32_t source, destination, stream, process, flags;
};

/// Adds a record of any kind to what is known so far.
inline void count(const CounterRecord& record, ManagedTraffic& traffic) {
  if (record.kind != kUnifiedMemoryRecord) return;
  switch (record.counter) {
    case kToDevice:
      traffic.bytes_to_device += record.value;
      if (record.flags == kAskedFor) traffic.bytes_prefetched += record.value;
      break;
    case kToHost: traffic.bytes_to_host += record.value; break;
    case kHostFault: traffic.faults += 1; break;
    case kDeviceFaults: traffic.faults += record.value; break;
    default: break;
  }
}

}  // namespace oomlab::cupti
