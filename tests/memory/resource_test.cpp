// One contract (resource.h), every resource.

#include "memory/resource.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "cuda/check.h"
#include "cuda/raii.h"
#include "memory/context.h"
#include "memory/shared_budget.h"
#include "resource_contract.h"

namespace oomlab {

template <>
struct Stack<ArenaResource> {
  explicit Stack(cudaStream_t stream) : top(bottom, 16 * kMiB, stream) {}
  CudaResource bottom;
  ArenaResource top;
};
template <>
struct Stack<LimitingResource> {
  explicit Stack(cudaStream_t) : top(bottom, 16 * kMiB) {}
  AsyncResource bottom;
  LimitingResource top;
};
template <>
struct Stack<TrackingResource> {
  explicit Stack(cudaStream_t) : top(bottom, ledger) {}
  AsyncResource bottom;
  Ledger ledger;
  TrackingResource top;
};

template <>
struct Stack<SharedLimitResource> {
  explicit Stack(cudaStream_t) : top(bottom, budget, 0) {}
  CudaResource bottom;
  SharedBudget budget{16 * kMiB};
  SharedLimitResource top;
};
template <>
struct Stack<WaitingResource> {
  explicit Stack(cudaStream_t)
      : limit(bottom, 16 * kMiB), top(limit, {.in_all = Patience::Milliseconds(10), .pause = [](auto) {}}) {}
  AsyncResource bottom;
  LimitingResource limit;
  WaitingResource top;
};

using Resources = ::testing::Types<CudaResource, AsyncResource, ManagedResource, PinnedResource, ArenaResource,
                                   LimitingResource, TrackingResource, SharedLimitResource, WaitingResource>;
INSTANTIATE_TYPED_TEST_SUITE_P(Common, ResourceContract, Resources);

namespace {

// ---------------------------------------------------------------------------------------------- each with its own ways

template <class Resource>
class CountingResource : public ::testing::Test {};
using CountingResources = ::testing::Types<CudaResource, ManagedResource, PinnedResource>;
TYPED_TEST_SUITE(CountingResource, CountingResources);

TYPED_TEST(CountingResource, ReservesExactlyWhatIsLive) {
  TypeParam memory;
  EXPECT_EQ(memory.reserved_bytes(), 0u);
  void* a = memory.allocate(1000, nullptr);
  void* b = memory.allocate(1, nullptr);
  EXPECT_EQ(memory.reserved_bytes(), 1536u);
  memory.deallocate(a, 1000, nullptr);
  EXPECT_EQ(memory.reserved_bytes(), 512u);
  memory.deallocate(b, 1, nullptr);
  EXPECT_EQ(memory.reserved_bytes(), 0u);
  EXPECT_EQ(memory.largest_free_block(), 0u);
}

TEST(AsyncResource, KeepsWhatIsFreedUntilTrimmed) {
  AsyncResource memory;
  const Stream stream;
  void* address = memory.allocate(8 * kMiB, stream);
  const std::size_t reserved = memory.reserved_bytes();
  EXPECT_GE(reserved, 8 * kMiB);
  memory.deallocate(address, 8 * kMiB, stream);
  stream.synchronize();
  EXPECT_EQ(memory.reserved_bytes(), reserved);
  memory.trim();
  EXPECT_EQ(memory.reserved_bytes(), 0u);
}

TEST(ArenaResource, CutsFromTheFrontUntilReset) {
  CudaResource bottom;
  {
    ArenaResource arena(bottom, 4000, nullptr);
    EXPECT_EQ(bottom.reserved_bytes(), 4096u);
    EXPECT_EQ(arena.reserved_bytes(), 4096u);
    EXPECT_EQ(arena.largest_free_block(), 4096u);
    auto* a = static_cast<std::byte*>(arena.allocate(100, nullptr));
    auto* b = static_cast<std::byte*>(arena.allocate(100, nullptr));
    EXPECT_EQ(b - a, 512);
    EXPECT_EQ(arena.largest_free_block(), 3072u);
    arena.deallocate(a, 100, nullptr);
    EXPECT_EQ(arena.largest_free_block(), 3072u);
    EXPECT_THROW((void)arena.allocate(3073, nullptr), OutOfMemory);
    EXPECT_NE(arena.allocate(3072, nullptr), nullptr);
    EXPECT_THROW((void)arena.allocate(1, nullptr), OutOfMemory);
    arena.reset();
    EXPECT_EQ(arena.allocate(4096, nullptr), a);
  }
  EXPECT_EQ(bottom.reserved_bytes(), 0u);
}

TEST(LimitingResource, RefusesExactlyBeyondTheBudget) {
  CudaResource bottom;
  LimitingResource memory(bottom, 4096);
  void* a = memory.allocate(3000, nullptr);  // counts 3072
  EXPECT_EQ(memory.live_bytes(), 3072u);
  EXPECT_THROW((void)memory.allocate(1025, nullptr), OutOfMemory);
  try {
    (void)memory.allocate(2000, nullptr);
    ADD_FAILURE();
  } catch (const OutOfMemory& error) {
    EXPECT_TRUE(error.report().by_limit);
    EXPECT_EQ(error.report().limit, 4096u);
    EXPECT_EQ(error.report().limit_used, 3072u);
    EXPECT_EQ(error.report().requested, 2000u);
    EXPECT_EQ(error.report().requested_rounded, 2048u);
  }
  EXPECT_EQ(bottom.reserved_bytes(), 3072u) << "upstream was asked";
  void* b = memory.allocate(1024, nullptr);
  EXPECT_EQ(memory.live_bytes(), 4096u);
  memory.deallocate(a, 3000, nullptr);
  EXPECT_EQ(memory.live_bytes(), 1024u);
  memory.deallocate(b, 1024, nullptr);
  EXPECT_EQ(memory.live_bytes(), 0u);
  EXPECT_EQ(memory.limit_bytes(), 4096u);
}

TEST(LimitingResource, ABudgetThatIsNoMultipleOfTheGranuleHoldsToo) {
  CudaResource bottom;
  LimitingResource memory(bottom, 1000);
  void* a = memory.allocate(512, nullptr);
  EXPECT_THROW((void)memory.allocate(1, nullptr), OutOfMemory);
  memory.deallocate(a, 512, nullptr);
}

TEST(TrackingResource, ChargesWhatIsRounded) {
  CudaResource bottom;
  Ledger ledger;
  TrackingResource memory(bottom, ledger);
  void* a = memory.allocate(1000, nullptr, Category::gradients, "weight gradient");
  EXPECT_EQ(ledger.live_bytes(), 1024u);
  EXPECT_EQ(ledger.live_by_category()[Category::gradients], 1024u);
  EXPECT_EQ(ledger.live_blocks().at(a).tag, "weight gradient");
  EXPECT_EQ(ledger.live_blocks().at(a).requested, 1000u);
  EXPECT_EQ(bottom.reserved_bytes(), 1024u);
  void* b = memory.allocate(1, nullptr);
  EXPECT_EQ(ledger.live_by_category()[Category::workspace], 512u);
  memory.deallocate(a, 1000, nullptr);
  memory.deallocate(b, 1, nullptr);
  EXPECT_EQ(ledger.live_bytes(), 0u);
  EXPECT_EQ(ledger.peak_bytes(), 1536u);
  EXPECT_EQ(bottom.reserved_bytes(), 0u);
}

TEST(TrackingResource, ObservesTheDeviceWhenAsked) {
  CudaResource bottom;
  Ledger ledger;
  ledger.record_timeline(true);
  TrackingResource memory(bottom, ledger);
  memory.deallocate(memory.allocate(4096, nullptr), 4096, nullptr);
  EXPECT_EQ(ledger.peak_reserved_bytes(), 0u);
  memory.observe_device(true);
  memory.deallocate(memory.allocate(4096, nullptr), 4096, nullptr);
  EXPECT_EQ(ledger.peak_reserved_bytes(), 4096u);
  EXPECT_GE(ledger.peak_device_used_bytes(), 4096u);
  ASSERT_EQ(ledger.timeline().size(), 4u);
  EXPECT_EQ(ledger.timeline()[2].reserved_after, 4096u) << "an allocation knows what is reserved with it";
  EXPECT_EQ(ledger.timeline()[3].reserved_after, 0u) << "and a free without it";
}

// Below, the bottom does as it is told, so that what stands on it is tested alone.
class ScriptedResource final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, cudaStream_t) override {
    if (fail) fail();
    live += bytes;
    return next += bytes;
  }
  void deallocate(void*, std::size_t bytes, cudaStream_t) noexcept override { live -= bytes; }
  std::size_t reserved_bytes() const override {
    if (reserved_fails) throw CudaError(cudaErrorInvalidValue, "cudaMemPoolGetAttribute", __FILE__, __LINE__);
    return live;
  }
  void (*fail)() = nullptr;
  bool reserved_fails = false;
  std::size_t live = 0;
  std::byte* next = reinterpret_cast<std::byte*>(std::uintptr_t(1) << 40);
};

TEST(TrackingResource, GivesTheBlockBackWhenObservingFails) {
  ScriptedResource bottom;
  Ledger ledger;
  ledger.record_timeline(true);
  TrackingResource memory(bottom, ledger);
  memory.observe_device(true);
  bottom.reserved_fails = true;
  EXPECT_THROW((void)memory.allocate(1, nullptr), CudaError);
  EXPECT_EQ(bottom.live, 0u);
  EXPECT_EQ(ledger.live_bytes(), 0u);
  EXPECT_TRUE(ledger.timeline().empty());
  bottom.reserved_fails = false;
  void* address = memory.allocate(1, nullptr);
  bottom.reserved_fails = true;
  memory.deallocate(address, 1, nullptr);  // goes on without the figure
  EXPECT_EQ(bottom.live, 0u);
  EXPECT_EQ(ledger.live_bytes(), 0u);
}

TEST(TrackingResource, ReportsWithWhatIsKnownWhenTheAllocatorIsSilent) {
  ScriptedResource bottom;
  Ledger ledger;
  TrackingResource memory(bottom, ledger);
  bottom.fail = [] { throw OutOfMemory({}); };
  bottom.reserved_fails = true;
  try {
    (void)memory.allocate(1000, nullptr, Category::data, "images");
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.report().requested, 1000u);
    EXPECT_EQ(error.report().tag, "images");
    EXPECT_EQ(error.report().reserved, 0u);
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(TrackingResource, PassesOtherErrorsOn) {
  ScriptedResource bottom;
  Ledger ledger;
  TrackingResource memory(bottom, ledger);
  bottom.fail = [] { throw CudaError(cudaErrorInvalidValue, "cudaMalloc", __FILE__, __LINE__); };
  EXPECT_THROW((void)memory.allocate(1, nullptr), CudaError);
  bottom.fail = [] { throw std::bad_alloc(); };
  EXPECT_THROW((void)memory.allocate(1, nullptr), std::bad_alloc);
  EXPECT_EQ(ledger.live_bytes(), 0u);
}

// Drivers take memory for a pool in steps of their own, which may be larger than a whole budget.
TEST(LimitingResource, DoesNotCountAPoolsSteps) {
  AsyncResource pool;
  LimitingResource memory(pool, 3 * kMiB);
  const Stream stream;
  void* const most = memory.allocate(2 * kMiB + 1, stream);
  void* const rest = memory.allocate(kMiB - kGranule, stream);
  EXPECT_GE(pool.reserved_bytes(), 3 * kMiB);
  EXPECT_THROW((void)memory.allocate(1, stream), OutOfMemory);
  memory.deallocate(most, 2 * kMiB + 1, stream);
  memory.deallocate(rest, kMiB - kGranule, stream);
}

TEST(LimitingResource, CountsNothingThatUpstreamRefused) {
  ScriptedResource bottom;
  LimitingResource memory(bottom, 4096);
  bottom.fail = [] { throw OutOfMemory({}); };
  EXPECT_THROW((void)memory.allocate(1, nullptr), OutOfMemory);
  EXPECT_EQ(memory.live_bytes(), 0u);
}

// ------------------------------------------------------------------------------------------------ buffers and contexts

TEST(DeviceBuffer, OwnsItsBytes) {
  AsyncResource bottom;
  Ledger ledger;
  Context context(bottom, ledger);
  EXPECT_EQ(ledger.live_bytes(), kBlasWorkspaceBytes);
  {
    DeviceBuffer<float> a = context.buffer<float>(1000, Category::activations, "a");
    EXPECT_EQ(a.size(), 1000u);
    EXPECT_EQ(a.bytes(), 4000u);
    EXPECT_EQ(ledger.live_by_category()[Category::activations], 4096u);
    DeviceBuffer<float> b = std::move(a);
    EXPECT_FALSE(a);  // NOLINT: what a moved-from buffer is, is promised
    EXPECT_EQ(ledger.live_by_category()[Category::activations], 4096u);
    b = context.buffer<float>(10, Category::activations, "b");
    EXPECT_EQ(ledger.live_by_category()[Category::activations], 512u);
    const DeviceBuffer<float> none = context.buffer<float>(0, Category::activations, "none");
    EXPECT_FALSE(none);
    EXPECT_THROW(context.buffer<float>(SIZE_MAX / 2, Category::activations, "huge"), std::length_error);
  }
  EXPECT_EQ(ledger.live_bytes(), kBlasWorkspaceBytes);
}

TEST(Context, CountsItsWorkspaceAndLeavesNothing) {
  CudaResource bottom;
  Ledger ledger;
  {
    Context context(bottom, ledger);
    EXPECT_EQ(ledger.live_by_category()[Category::workspace], kBlasWorkspaceBytes);
    EXPECT_EQ(ledger.largest_live(1).at(0).tag, "cuBLAS workspace");
    EXPECT_NE(context.stream(), nullptr);
    EXPECT_NE(context.blas(), nullptr);
    EXPECT_EQ(&context.ledger(), &ledger);
  }
  EXPECT_EQ(ledger.live_bytes(), 0u);
  EXPECT_EQ(bottom.reserved_bytes(), 0u);
}

TEST(Context, ABudgetTooSmallForTheWorkspaceIsOutOfMemory) {
  CudaResource bottom;
  LimitingResource limited(bottom, kBlasWorkspaceBytes - 1);
  Ledger ledger;
  EXPECT_THROW(Context(limited, ledger), OutOfMemory);
  EXPECT_EQ(ledger.live_bytes(), 0u);
}

}  // namespace
}  // namespace oomlab
