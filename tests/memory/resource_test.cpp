// One contract (resource.h), every resource.

#include "memory/resource.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "cuda/check.h"
#include "cuda/raii.h"
#include "memory/context.h"

namespace oomlab {
namespace {

constexpr std::size_t kMiB = std::size_t(1) << 20;

// How each resource is made. Members are destroyed in reverse order, the top of the stack first.
template <class Resource>
struct Stack {
  explicit Stack(cudaStream_t) {}
  Resource top;
};
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

template <class Resource>
class ResourceContract : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "an error was left behind";
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  Stream stream_;
  Stack<Resource> stack_{stream_};
  MemoryResource& memory_ = stack_.top;
};

using Resources = ::testing::Types<CudaResource, AsyncResource, ManagedResource, PinnedResource, ArenaResource,
                                   LimitingResource, TrackingResource>;
TYPED_TEST_SUITE(ResourceContract, Resources);

TYPED_TEST(ResourceContract, NoBytesAreNoBlock) {
  const std::size_t reserved = this->memory_.reserved_bytes();
  EXPECT_EQ(this->memory_.allocate(0, this->stream_), nullptr);
  this->memory_.deallocate(nullptr, 0, this->stream_);
  this->memory_.deallocate(nullptr, 100, this->stream_);
  EXPECT_EQ(this->memory_.reserved_bytes(), reserved);
}

TYPED_TEST(ResourceContract, BlocksAreAlignedAndApart) {
  const std::vector<std::size_t> sizes = {1, 511, 512, 513, 4096, 100'000, kMiB, kMiB + 1};
  std::vector<std::pair<std::uintptr_t, std::size_t>> blocks;
  for (const std::size_t bytes : sizes) {
    void* address = this->memory_.allocate(bytes, this->stream_);
    ASSERT_NE(address, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 256, 0u) << bytes << " bytes";
    blocks.emplace_back(reinterpret_cast<std::uintptr_t>(address), bytes);
  }
  EXPECT_GE(this->memory_.reserved_bytes(), std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  std::sort(blocks.begin(), blocks.end());
  for (std::size_t i = 1; i < blocks.size(); ++i)
    EXPECT_LE(blocks[i - 1].first + round_to_granule(blocks[i - 1].second), blocks[i].first);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  for (const auto& [address, bytes] : blocks)
    this->memory_.deallocate(reinterpret_cast<void*>(address), bytes, this->stream_);
}

TYPED_TEST(ResourceContract, BlocksHoldWhatIsWritten) {
  constexpr std::size_t kBytes = 10'000;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(this->memory_.allocate(kBytes, this->stream_));
    CUDA_CHECK(cudaMemsetAsync(blocks.back(), i + 1, kBytes, this->stream_));
  }
  for (int i = 0; i < 8; ++i) {
    std::vector<unsigned char> back(kBytes);
    CUDA_CHECK(cudaMemcpyAsync(back.data(), blocks[i], kBytes, cudaMemcpyDefault, this->stream_));
    this->stream_.synchronize();
    EXPECT_EQ(std::count(back.begin(), back.end(), i + 1), static_cast<std::ptrdiff_t>(kBytes));
    this->memory_.deallocate(blocks[i], kBytes, this->stream_);
  }
}

TYPED_TEST(ResourceContract, QueuedWorkMayStillUseAFreedBlock) {
  std::vector<unsigned char> back(kMiB);
  for (int i = 1; i < 20; ++i) {
    void* address = this->memory_.allocate(kMiB / 2, this->stream_);
    CUDA_CHECK(cudaMemsetAsync(address, i, kMiB / 2, this->stream_));
    CUDA_CHECK(cudaMemcpyAsync(back.data(), address, kMiB / 2, cudaMemcpyDefault, this->stream_));
    this->memory_.deallocate(address, kMiB / 2, this->stream_);
    this->stream_.synchronize();
    ASSERT_EQ(back[0], i);
    ASSERT_EQ(back[kMiB / 2 - 1], i);
  }
}

TYPED_TEST(ResourceContract, WhatCannotBeServedChangesNothing) {
  void* before = this->memory_.allocate(4096, this->stream_);
  const std::size_t reserved = this->memory_.reserved_bytes();
  constexpr std::size_t kImpossible = std::size_t(1) << 60;
  try {
    (void)this->memory_.allocate(kImpossible, this->stream_);
    ADD_FAILURE() << "served";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.report().requested, kImpossible);
    EXPECT_EQ(std::string(error.what()).rfind("CUDA out of memory. Tried to allocate 1024.00 PiB", 0), 0u)
        << error.what();
  } catch (const CudaError&) {  // some drivers call such a size invalid
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(this->memory_.reserved_bytes(), reserved);
  void* after = this->memory_.allocate(4096, this->stream_);
  EXPECT_NE(after, nullptr);
  this->memory_.deallocate(before, 4096, this->stream_);
  this->memory_.deallocate(after, 4096, this->stream_);
}

TYPED_TEST(ResourceContract, ASizeThatCannotBeRoundedIsRefused) {
  EXPECT_THROW((void)this->memory_.allocate(SIZE_MAX, this->stream_), std::length_error);
}

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
