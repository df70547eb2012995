// What cuda/device/paging_counters.h declares is what CUPTI's own header does, and what its records say is counted.

#include "cuda/device/paging_counters.h"

#include <cuda.h>
#include <cupti.h>
#include <gtest/gtest.h>

namespace oomlab::cupti {
namespace {

using Real = CUpti_ActivityUnifiedMemoryCounter2;  // from CUDA 12.8 on there is a 3, which begins as this one

static_assert(CUPTI_SUCCESS == kSuccess);
static_assert(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER == kUnifiedMemoryRecord);
static_assert(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED == kFlushAll);
static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE == kScopeOneDevice);
static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD == kToDevice);
static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH == kToHost);
static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT == kHostFault);
static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT == kDeviceFaults);
static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER == kAskedFor);

static_assert(sizeof(CounterConfig) == sizeof(CUpti_ActivityUnifiedMemoryCounterConfig));
static_assert(offsetof(CounterConfig, kind) == offsetof(CUpti_ActivityUnifiedMemoryCounterConfig, kind));
static_assert(offsetof(CounterConfig, device) == offsetof(CUpti_ActivityUnifiedMemoryCounterConfig, deviceId));
static_assert(offsetof(CounterConfig, enable) == offsetof(CUpti_ActivityUnifiedMemoryCounterConfig, enable));

static_assert(offsetof(CounterRecord, kind) == offsetof(Real, kind));
static_assert(offsetof(CounterRecord, counter) == offsetof(Real, counterKind));
static_assert(offsetof(CounterRecord, value) == offsetof(Real, value));
static_assert(offsetof(CounterRecord, address) == offsetof(Real, address));
static_assert(offsetof(CounterRecord, process) == offsetof(Real, processId));
static_assert(offsetof(CounterRecord, flags) == offsetof(Real, flags));

TEST(Cupti, RecordsAreCounted) {
  ManagedTraffic traffic;
  const auto add = [&](CUpti_ActivityUnifiedMemoryCounterKind counter, std::uint64_t value, std::uint32_t flags) {
    Real record{};
    record.kind = CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER;
    record.counterKind = counter;
    record.value = value;
    record.flags = flags;
    count(reinterpret_cast<const CounterRecord&>(record), traffic);
  };
  add(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD, 1000,
      CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER);
  add(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD, 200,
      CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE);
  add(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH, 30,
      CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_EVICTION);
  add(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT, 0x7fff0000, 0);
  add(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT, 7, 0);
  add(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING, 5000, 0);
  EXPECT_EQ(traffic.bytes_to_device, 1200u);
  EXPECT_EQ(traffic.bytes_prefetched, 1000u);
  EXPECT_EQ(traffic.bytes_to_host, 30u);
  EXPECT_EQ(traffic.faults, 8u) << "a fault of the host, and seven groups of the device's";
}

// Loads CUPTI where there is one; whether it counts depends on the device, and that it says.
TEST(Cupti, WatchingIsHarmless) {
  for (int i = 0; i < 2; ++i) {
    const ManagedWatch watch;
    (void)take_managed_traffic();
  }
  EXPECT_FALSE(take_managed_traffic()) << "nobody watches";
}

}  // namespace
}  // namespace oomlab::cupti
