// Stream-ordered allocation and memory pools.

#include <cstdint>

#include "contract.h"

namespace {

cudaMemPoolProps pool_properties() {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.handleTypes = cudaMemHandleTypeNone;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = 0;
  return props;
}

class Pools : public Contract {
 protected:
  void SetUp() override {
    Contract::SetUp();
    if (IsSkipped()) return;
    const cudaMemPoolProps props = pool_properties();
    ASSERT_CUDA(cudaMemPoolCreate(&pool, &props));
  }
  void TearDown() override {
    if (pool) {
      EXPECT_CUDA(cudaSuccess, cudaMemPoolDestroy(pool));
    }
    Contract::TearDown();
  }
  std::uint64_t get(cudaMemPoolAttr attr) const {
    std::uint64_t value = 0;
    CUDA_CHECK(cudaMemPoolGetAttribute(pool, attr, &value));
    return value;
  }
  void set(cudaMemPoolAttr attr, std::uint64_t value) const { CUDA_CHECK(cudaMemPoolSetAttribute(pool, attr, &value)); }
  char* take(std::size_t bytes, cudaStream_t stream = nullptr) const {
    char* p = nullptr;
    CUDA_CHECK(cudaMallocFromPoolAsync(reinterpret_cast<void**>(&p), bytes, pool, stream));
    return p;
  }
  cudaMemPool_t pool = nullptr;
};

TEST_F(Pools, CountsWhatIsReservedAndUsed) {
  EXPECT_EQ(0u, get(cudaMemPoolAttrReservedMemCurrent));
  char *a = take(10 * MiB), *b = take(1);
  EXPECT_NE(a, b);
  EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(a) % 256);
  EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(b) % 256);
  EXPECT_GE(get(cudaMemPoolAttrUsedMemCurrent), 10 * MiB + 1);
  EXPECT_LE(get(cudaMemPoolAttrUsedMemCurrent), 10 * MiB + 4096);
  EXPECT_GE(get(cudaMemPoolAttrReservedMemCurrent), get(cudaMemPoolAttrUsedMemCurrent));
  EXPECT_EQ(0u, get(cudaMemPoolAttrReservedMemCurrent) % (2 * MiB));
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(a, nullptr));
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(b, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(0u, get(cudaMemPoolAttrUsedMemCurrent));
  EXPECT_GE(get(cudaMemPoolAttrUsedMemHigh), 10 * MiB + 1);
  EXPECT_GE(get(cudaMemPoolAttrReservedMemHigh), 10 * MiB);
  set(cudaMemPoolAttrUsedMemHigh, 0);
  EXPECT_EQ(0u, get(cudaMemPoolAttrUsedMemHigh));
  std::uint64_t five = 5;
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &five));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &five));
}

TEST_F(Pools, GivesMemoryBackAtSynchronisationUnlessToldToKeepIt) {
  char* a = take(10 * MiB);
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(a, nullptr));
  ASSERT_CUDA(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(0u, get(cudaMemPoolAttrReservedMemCurrent)) << "the release threshold is 0 at first";
  set(cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
  EXPECT_EQ(UINT64_MAX, get(cudaMemPoolAttrReleaseThreshold));
  a = take(10 * MiB);
  const std::uint64_t reserved = get(cudaMemPoolAttrReservedMemCurrent);
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(a, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(reserved, get(cudaMemPoolAttrReservedMemCurrent));
  EXPECT_CUDA(cudaSuccess, cudaMemPoolTrimTo(pool, reserved));
  EXPECT_EQ(reserved, get(cudaMemPoolAttrReservedMemCurrent));
  EXPECT_CUDA(cudaSuccess, cudaMemPoolTrimTo(pool, 0));
  EXPECT_EQ(0u, get(cudaMemPoolAttrReservedMemCurrent));
}

TEST_F(Pools, TrimKeepsWhatIsUsed) {
  set(cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
  char *a = take(64 * MiB), *b = take(64 * MiB);
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(b, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_CUDA(cudaSuccess, cudaMemPoolTrimTo(pool, 0));
  EXPECT_GE(get(cudaMemPoolAttrReservedMemCurrent), 64 * MiB);
  ASSERT_CUDA(cudaMemset(a, 1, 64 * MiB));
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(a, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
}

TEST_F(Pools, FreedMemoryIsUsedAgainOnItsStream) {
  oomlab::Stream stream;
  set(cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
  char* first = take(20 * MiB, stream);
  const std::uint64_t reserved = get(cudaMemPoolAttrReservedMemCurrent);
  for (int i = 0; i < 20; ++i) {
    ASSERT_CUDA(cudaMemsetAsync(first, i, 20 * MiB, stream));
    ASSERT_CUDA(cudaFreeAsync(first, stream));
    first = take(20 * MiB, stream);
  }
  EXPECT_EQ(reserved, get(cudaMemPoolAttrReservedMemCurrent));
  ASSERT_CUDA(cudaFreeAsync(first, stream));
  stream.synchronize();
}

TEST_F(Pools, NeighboursGrowTogetherAgain) {
  set(cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
  std::vector<char*> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(take(4 * MiB));
  const std::uint64_t reserved = get(cudaMemPoolAttrReservedMemCurrent);
  for (const int i : {1, 3, 5, 7, 0, 2, 4, 6}) ASSERT_CUDA(cudaFreeAsync(pieces[static_cast<std::size_t>(i)], nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  char* all = take(32 * MiB);
  EXPECT_EQ(reserved, get(cudaMemPoolAttrReservedMemCurrent));
  ASSERT_CUDA(cudaFreeAsync(all, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
}

TEST_F(Pools, BlocksKeepTheirContents) {
  oomlab::Stream stream;
  std::vector<std::pair<char*, int>> blocks;
  unsigned random = 1;
  for (int i = 0; i < 300; ++i) {
    random = random * 1664525 + 1013904223;
    if (blocks.size() > 20 || (!blocks.empty() && random >> 30 == 0)) {
      const std::size_t victim = (random >> 8) % blocks.size();
      std::vector<char> out(1000 + static_cast<std::size_t>(blocks[victim].second));
      ASSERT_CUDA(cudaMemcpyAsync(out.data(), blocks[victim].first, out.size(), cudaMemcpyDeviceToHost, stream));
      stream.synchronize();
      ASSERT_EQ(std::vector<char>(out.size(), static_cast<char>(blocks[victim].second)), out);
      ASSERT_CUDA(cudaFreeAsync(blocks[victim].first, stream));
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      char* p = take(1000 + static_cast<std::size_t>(i), stream);
      ASSERT_CUDA(cudaMemsetAsync(p, i, 1000 + static_cast<std::size_t>(i), stream));
      blocks.push_back({p, i});
    }
  }
  for (auto& block : blocks) ASSERT_CUDA(cudaFreeAsync(block.first, stream));
  stream.synchronize();
}

TEST_F(Pools, MoreThanThereIs) {
  std::size_t free = 0, total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free, &total));
  void* p = nullptr;
  EXPECT_CUDA_ERROR(cudaErrorMemoryAllocation, cudaMallocFromPoolAsync(&p, 16 * total, pool, nullptr));
  EXPECT_CUDA_ERROR(cudaErrorMemoryAllocation, cudaMallocAsync(&p, 16 * total, nullptr));
  EXPECT_EQ(0u, get(cudaMemPoolAttrUsedMemCurrent));
}

TEST_F(Pools, CudaFreeTakesThemToo) {
  char* a = take(1000);
  EXPECT_CUDA(cudaSuccess, cudaFree(a));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(0u, get(cudaMemPoolAttrReservedMemCurrent));  // driver 580 goes on counting it as used
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaFree(a));
}

TEST_F(Pools, FreeAsyncOfWhatIsNotOurs) {
  int here = 0;
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaFreeAsync(&here, nullptr));
  char* a = take(1000);
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(a, nullptr));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaFreeAsync(a, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
}

TEST_F(Pools, BlocksOutliveADestroyedPool) {
  char* a = take(1000);
  EXPECT_CUDA(cudaSuccess, cudaMemPoolDestroy(pool));
  pool = nullptr;
  EXPECT_CUDA(cudaSuccess, cudaMemset(a, 1, 1000));
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(a, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
}

TEST_F(Pools, TheDevicesPools) {
  cudaMemPool_t standard = nullptr;
  ASSERT_CUDA(cudaDeviceGetDefaultMemPool(&standard, 0));
  char* a = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&a, MiB, nullptr));
  EXPECT_LT(get(cudaMemPoolAttrUsedMemCurrent), MiB) << "cudaMallocAsync takes from the device's default pool";
  ASSERT_CUDA(cudaFreeAsync(a, nullptr));
  ASSERT_CUDA(cudaMallocFromPoolAsync(reinterpret_cast<void**>(&a), MiB, pool, nullptr));
  EXPECT_GE(get(cudaMemPoolAttrUsedMemCurrent), MiB);
  ASSERT_CUDA(cudaFreeAsync(a, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemPoolDestroy(standard));
  EXPECT_CUDA_ERROR(cudaErrorInvalidDevice, cudaDeviceGetDefaultMemPool(&standard, 1000));
}

TEST_F(Pools, Access) {
  cudaMemAccessDesc desc{};
  desc.location.type = cudaMemLocationTypeDevice;
  desc.location.id = 0;
  desc.flags = cudaMemAccessFlagsProtReadWrite;
  EXPECT_CUDA(cudaSuccess, cudaMemPoolSetAccess(pool, &desc, 1));
  desc.location.id = 1000;
  EXPECT_NE(cudaSuccess, cudaMemPoolSetAccess(pool, &desc, 1));
  EXPECT_NE(cudaSuccess, cudaGetLastError());
}

TEST_F(Pools, RefusesStrangeProperties) {
  cudaMemPool_t other = nullptr;
  cudaMemPoolProps props = pool_properties();
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemPoolCreate(nullptr, &props));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemPoolCreate(&other, nullptr));
  props.allocType = static_cast<cudaMemAllocationType>(0);
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemPoolCreate(&other, &props));
}

}  // namespace
