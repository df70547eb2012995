// Virtual memory management: addresses and memory apart.

#include <cuda.h>

#include <cstring>
#include <string>

#include "contract.h"
#include "cuda/launch.h"

namespace {

using namespace oomlab;

__global__ void write_index(unsigned* y, std::size_t n, unsigned plus) {
  for (std::size_t i : grid_range(n)) y[i] = static_cast<unsigned>(i) + plus;
}

class Vmm : public Contract {
 protected:
  void SetUp() override {
    Contract::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(CUDA_SUCCESS, cuInit(0));
    ASSERT_CUDA(cudaFree(nullptr));  // makes the context, where that matters
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = 0;
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ASSERT_EQ(CUDA_SUCCESS, cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  }
  CUdeviceptr reserve(std::size_t bytes) const {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA_SUCCESS, cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
  }
  CUmemGenericAllocationHandle create(std::size_t bytes) const {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA_SUCCESS, cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
  }
  void write(CUdeviceptr address, std::size_t n, unsigned plus) const {
    launch(write_index, {4, 96, 0}, nullptr, reinterpret_cast<unsigned*>(address), n, plus);
  }
  std::vector<unsigned> read(CUdeviceptr address, std::size_t n) const {
    std::vector<unsigned> v(n);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(v.data(), reinterpret_cast<void*>(address), n * sizeof(unsigned), cudaMemcpyDeviceToHost));
    return v;
  }
  CUmemAllocationProp properties{};
  CUmemAccessDesc access{};
  std::size_t granule = 0;
};

TEST_F(Vmm, ABufferGrowsInPlace) {
  EXPECT_EQ(0u, granule & (granule - 1));
  const std::size_t n = granule / sizeof(unsigned);
  const CUdeviceptr address = reserve(4 * granule);
  EXPECT_EQ(0u, address % granule);
  CUmemGenericAllocationHandle handles[2] = {create(granule), create(2 * granule)};
  ASSERT_EQ(CUDA_SUCCESS, cuMemMap(address, granule, 0, handles[0], 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemSetAccess(address, granule, &access, 1));
  write(address, n, 7);
  ASSERT_EQ(CUDA_SUCCESS, cuMemMap(address + granule, 2 * granule, 0, handles[1], 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemSetAccess(address, 3 * granule, &access, 1));
  EXPECT_EQ(7u + n - 1, read(address, n)[n - 1]) << "growing keeps the contents";
  write(address, 3 * n, 1);
  const auto v = read(address, 3 * n);  // one copy over two mappings
  EXPECT_EQ(1u, v[0]);
  EXPECT_EQ(3 * n, v[3 * n - 1]);
  EXPECT_EQ(CUDA_SUCCESS, cuMemUnmap(address, 3 * granule));
  for (const auto handle : handles) EXPECT_EQ(CUDA_SUCCESS, cuMemRelease(handle));
  EXPECT_EQ(CUDA_SUCCESS, cuMemAddressFree(address, 4 * granule));
}

TEST_F(Vmm, MemoryMovesToAnotherAddressWithItsContents) {
  const CUdeviceptr a = reserve(granule), b = reserve(granule);
  const auto handle = create(granule);
  ASSERT_EQ(CUDA_SUCCESS, cuMemMap(a, granule, 0, handle, 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemSetAccess(a, granule, &access, 1));
  write(a, 1000, 5);
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_EQ(CUDA_SUCCESS, cuMemUnmap(a, granule));
  ASSERT_EQ(CUDA_SUCCESS, cuMemMap(b, granule, 0, handle, 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemSetAccess(b, granule, &access, 1));
  EXPECT_EQ(5u + 999, read(b, 1000)[999]);
  EXPECT_EQ(CUDA_SUCCESS, cuMemUnmap(b, granule));
  EXPECT_EQ(CUDA_SUCCESS, cuMemRelease(handle));
  EXPECT_EQ(CUDA_SUCCESS, cuMemAddressFree(a, granule));
  EXPECT_EQ(CUDA_SUCCESS, cuMemAddressFree(b, granule));
}

TEST_F(Vmm, MemoryStaysWhileItIsMapped) {
  const CUdeviceptr a = reserve(granule);
  const auto handle = create(granule);
  ASSERT_EQ(CUDA_SUCCESS, cuMemMap(a, granule, 0, handle, 0));
  EXPECT_EQ(CUDA_SUCCESS, cuMemRelease(handle));
  ASSERT_EQ(CUDA_SUCCESS, cuMemSetAccess(a, granule, &access, 1));
  write(a, 1000, 3);
  EXPECT_EQ(3u, read(a, 1)[0]);
  EXPECT_EQ(CUDA_SUCCESS, cuMemUnmap(a, granule));
  EXPECT_EQ(CUDA_SUCCESS, cuMemAddressFree(a, granule));
}

TEST_F(Vmm, CapacityGoesWithTheMemoryNotWithTheAddress) {
  std::size_t before = 0, now = 0, total = 0;
  const std::size_t bytes = 16 * granule;
  ASSERT_CUDA(cudaMemGetInfo(&before, &total));
  const CUdeviceptr a = reserve(1024 * granule);
  ASSERT_CUDA(cudaMemGetInfo(&now, &total));
  EXPECT_EQ(before, now) << "an address costs nothing";
  const auto handle = create(bytes);
  ASSERT_CUDA(cudaMemGetInfo(&now, &total));
  EXPECT_GE(before - now, bytes);
  EXPECT_EQ(CUDA_SUCCESS, cuMemRelease(handle));
  ASSERT_CUDA(cudaMemGetInfo(&now, &total));
  EXPECT_EQ(before, now);
  EXPECT_EQ(CUDA_SUCCESS, cuMemAddressFree(a, 1024 * granule));
  CUmemGenericAllocationHandle none = 0;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&none, (total / granule + 16) * granule, &properties, 0));
  EXPECT_CUDA(cudaSuccess, cudaPeekAtLastError()) << "the driver API leaves the runtime's last error alone";
}

TEST_F(Vmm, NoAccessBeforeSetAccess) {
  EXPECT_IN_A_PROCESS_OF_ITS_OWN({
    const CUdeviceptr a = reserve(granule);
    if (cuMemMap(a, granule, 0, create(granule), 0) != CUDA_SUCCESS) return false;
    const cudaError_t filled = cudaMemset(reinterpret_cast<void*>(a), 0, 16);  // which may only be queued
    return filled != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess;
  });
}

TEST_F(Vmm, RefusesWhatDoesNotFit) {
  const CUdeviceptr a = reserve(2 * granule);
  const auto handle = create(granule);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle none = 0;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&address, granule + 1, 0, 0, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&address, 0, 0, 0, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&none, granule + 1, &properties, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemMap(a + 1, granule, 0, handle, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, granule, &access, 1)) << "nothing is mapped";
  ASSERT_EQ(CUDA_SUCCESS, cuMemMap(a, granule, 0, handle, 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemSetAccess(a, granule, &access, 1));
  write(a, 1000, 4);
  const auto other = create(granule);
  const CUresult again = cuMemMap(a, granule, 0, other, 0);
  constexpr int kAlreadyMapped = 208;  // CUDA_ERROR_ALREADY_MAPPED, which drivers have for it, too
  EXPECT_TRUE(again == CUDA_ERROR_INVALID_VALUE || again == kAlreadyMapped) << again;
  EXPECT_EQ(CUDA_SUCCESS, cuMemRelease(other));
  EXPECT_EQ(4u + 999, read(a, 1000)[999]) << "what was mapped stays";
  EXPECT_EQ(CUDA_SUCCESS, cuMemUnmap(a, granule));
  EXPECT_EQ(CUDA_SUCCESS, cuMemRelease(handle));
  EXPECT_EQ(CUDA_SUCCESS, cuMemAddressFree(a, 2 * granule));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(a, 2 * granule));
}

}  // namespace
