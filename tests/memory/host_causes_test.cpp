// Causes of out-of-memory that need a small device to be met for real: the host runtime models one.

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <oomlab_host.h>

#include <map>
#include <vector>

#include "blocks.h"
#include "cuda/check.h"
#include "memory/out_of_memory.h"
#include "memory/resource.h"

namespace oomlab {
namespace {

using Cause = OutOfMemoryReport::Cause;
constexpr std::size_t kDevice = 64 * kMiB;

class SmallDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    host::Machine small = before_;
    small.capacity = kDevice;
    host::configure(small);
  }
  void TearDown() override {
    EXPECT_EQ(host::live(), host::Live()) << host::describe(host::live());
    host::configure(before_);
  }
  static OutOfMemoryReport refused(TrackingResource& memory, std::size_t bytes) {
    try {
      memory.deallocate(memory.allocate(bytes, nullptr, Category::activations, "asked"), bytes, nullptr);
      ADD_FAILURE() << "served";
    } catch (const OutOfMemory& error) {
      EXPECT_FALSE(error.report().by_limit);
      EXPECT_EQ(error.report().device_total, kDevice);
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      return error.report();
    }
    return {};
  }

 private:
  host::Machine before_ = host::machine();
};

TEST_F(SmallDevice, FullOfLiveBlocks) {
  CudaResource bottom;
  Ledger ledger;
  TrackingResource memory(bottom, ledger);
  void* held = memory.allocate(50 * kMiB, nullptr, Category::parameters, "held");
  const OutOfMemoryReport report = refused(memory, 20 * kMiB);
  EXPECT_EQ(report.cause(), Cause::live);
  EXPECT_EQ(report.device_free, 14 * kMiB);
  memory.deallocate(held, 50 * kMiB, nullptr);
}

TEST_F(SmallDevice, HeldByAnother) {
  void* others = nullptr;
  CUDA_CHECK(cudaMalloc(&others, 50 * kMiB));  // no ledger knows of it, as of another process's memory
  CudaResource bottom;
  Ledger ledger;
  TrackingResource memory(bottom, ledger);
  EXPECT_EQ(refused(memory, 20 * kMiB).cause(), Cause::other_process);
  CUDA_CHECK(cudaFree(others));
}

// Keeps what is freed, and reuses it for requests of the same size only.
class KeepingResource final : public MemoryResource {
 public:
  ~KeepingResource() override { give_back(); }
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    if (const auto kept = kept_.find(bytes); kept != kept_.end()) return kept_.extract(kept).mapped();
    return direct_.allocate(bytes, stream);
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t) noexcept override { kept_.emplace(bytes, address); }
  std::size_t reserved_bytes() const override { return direct_.reserved_bytes(); }
  std::size_t largest_free_block() const override { return kept_.empty() || silent ? 0 : kept_.rbegin()->first; }
  void give_back() {
    for (const auto& [bytes, address] : kept_) direct_.deallocate(address, bytes, nullptr);
    kept_.clear();
  }
  bool silent = false;

 private:
  CudaResource direct_;
  std::multimap<std::size_t, void*> kept_;
};

TEST_F(SmallDevice, HeldByTheCache) {
  KeepingResource cache;
  Ledger ledger;
  TrackingResource memory(cache, ledger);
  memory.deallocate(memory.allocate(50 * kMiB, nullptr), 50 * kMiB, nullptr);
  const OutOfMemoryReport report = refused(memory, 20 * kMiB);
  EXPECT_EQ(report.cause(), Cause::cached);
  EXPECT_EQ(report.reserved, 50 * kMiB);
  EXPECT_EQ(report.live, 0u);
  cache.give_back();
  memory.deallocate(memory.allocate(20 * kMiB, nullptr), 20 * kMiB, nullptr);
}

TEST_F(SmallDevice, InPiecesInTheCache) {
  KeepingResource cache;
  Ledger ledger;
  TrackingResource memory(cache, ledger);
  std::vector<void*> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(memory.allocate(5 * kMiB, nullptr));
  for (void* block : blocks) memory.deallocate(block, 5 * kMiB, nullptr);
  EXPECT_EQ(refused(memory, 20 * kMiB).cause(), Cause::fragmented);
  cache.silent = true;  // an allocator that cannot tell the pieces
  EXPECT_EQ(refused(memory, 20 * kMiB).cause(), Cause::cached);
}

TEST_F(SmallDevice, LostToRounding) {
  CudaResource bottom;
  Ledger ledger;
  TrackingResource memory(bottom, ledger);
  constexpr std::size_t kBlock = kMiB / 2 + 1;  // counts half a MiB and 512 bytes
  std::vector<void*> blocks;
  for (int i = 0; i < 120; ++i) blocks.push_back(memory.allocate(kBlock, nullptr, Category::data, "row"));
  // 120 blocks of 524,289 bytes leave 4,194,184 bytes; rounded, they leave 4,132,864.
  EXPECT_EQ(refused(memory, 4'150'000).cause(), Cause::rounding);
  for (void* block : blocks) memory.deallocate(block, kBlock, nullptr);
}

}  // namespace
}  // namespace oomlab
