// Managed memory: one address, both sides.

#include "contract.h"
#include "cuda/launch.h"

namespace {

using namespace oomlab;

__global__ void add_one(int* y, std::size_t n) {
  for (std::size_t i : grid_range(n)) y[i] += 1;
}

class Managed : public Contract {
 protected:
  static cudaMemLocation device() {
    cudaMemLocation where{};
    where.type = cudaMemLocationTypeDevice;
    return where;
  }
  static cudaMemLocation host() {
    cudaMemLocation where{};
    where.type = cudaMemLocationTypeHost;
    return where;
  }
};

TEST_F(Managed, BothSidesWriteInTurn) {
  const std::size_t n = 300000;
  int* y = nullptr;
  ASSERT_CUDA(cudaMallocManaged(&y, n * sizeof(int)));
  for (std::size_t i = 0; i < n; ++i) y[i] = static_cast<int>(i);
  for (int round = 1; round <= 3; ++round) {
    launch(add_one, {blocks_for_items(n, 96), 96, 0}, nullptr, y, n);
    ASSERT_CUDA(cudaDeviceSynchronize());
    for (std::size_t i = 0; i < n; i += 1000) ASSERT_EQ(static_cast<int>(i) + 2 * round - 1, y[i]);
    for (std::size_t i = 0; i < n; ++i) y[i] += 1;
  }
  EXPECT_CUDA(cudaSuccess, cudaFree(y));
}

// As with every other allocation. (CUDA's documents have an error for it.)
TEST_F(Managed, NoBytesAreNoAddress) {
  char here = 0, *y = &here;
  EXPECT_CUDA(cudaSuccess, cudaMallocManaged(&y, 0));
  EXPECT_EQ(nullptr, y);
}

TEST_F(Managed, BadArgumentsAreRefused) {
  char* y = nullptr;
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMallocManaged(&y, 100, 0x77u));
}

TEST_F(Managed, CopiesReachIt) {
  int* y = nullptr;
  ASSERT_CUDA(cudaMallocManaged(&y, 400000));
  Values<int> x(std::vector<int>(100000, 5));
  ASSERT_CUDA(cudaMemcpy(y, x.data(), 400000, cudaMemcpyDefault));
  EXPECT_EQ(5, y[99999]);
  ASSERT_CUDA(cudaMemset(y, 0, 400000));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(0, y[99999]);
  EXPECT_CUDA(cudaSuccess, cudaFree(y));
}

TEST_F(Managed, PrefetchAndAdvice) {
  int concurrent = 0;
  ASSERT_CUDA(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (!concurrent) GTEST_SKIP() << "this device cannot prefetch managed memory";
  Stream stream;
  const std::size_t n = 100000;
  int* y = nullptr;
  ASSERT_CUDA(cudaMallocManaged(&y, n * sizeof(int)));
  for (std::size_t i = 0; i < n; ++i) y[i] = 1;
  EXPECT_CUDA(cudaSuccess, cudaMemAdvise(y, n * sizeof(int), cudaMemAdviseSetPreferredLocation, device()));
  EXPECT_CUDA(cudaSuccess, cudaMemAdvise(y, n * sizeof(int), cudaMemAdviseSetAccessedBy, host()));
  EXPECT_CUDA(cudaSuccess, cudaMemPrefetchAsync(y, n * sizeof(int), device(), 0, stream));
  launch(add_one, {2, 64, 0}, stream, y, n);
  EXPECT_CUDA(cudaSuccess, cudaMemPrefetchAsync(y, n * sizeof(int), host(), 0, stream));
  stream.synchronize();
  const auto asked = [&](cudaMemRangeAttribute attribute, std::size_t first) {
    int place = 77;
    EXPECT_CUDA(cudaSuccess,
                cudaMemRangeGetAttribute(&place, sizeof(place), attribute, y + first, (n - first) * sizeof(int)));
    return place;
  };
  EXPECT_EQ(0, asked(cudaMemRangeAttributePreferredLocation, 0));
  EXPECT_EQ(cudaCpuDeviceId, asked(cudaMemRangeAttributeLastPrefetchLocation, 0));
  EXPECT_CUDA(cudaSuccess, cudaMemPrefetchAsync(y + n / 2, (n - n / 2) * sizeof(int), device(), 0, stream));
  stream.synchronize();
  EXPECT_EQ(0, asked(cudaMemRangeAttributeLastPrefetchLocation, n / 2));
  EXPECT_EQ(cudaInvalidDeviceId, asked(cudaMemRangeAttributeLastPrefetchLocation, 0)) << "not all in one place";
  EXPECT_EQ(2, y[0]);
  EXPECT_EQ(2, y[n - 1]);
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemPrefetchAsync(y, n * sizeof(int), device(), 1, stream));
  cudaMemLocation nowhere = device();
  nowhere.id = 1000;
  EXPECT_NE(cudaSuccess, cudaMemPrefetchAsync(y, n * sizeof(int), nowhere, 0, stream));
  EXPECT_NE(cudaSuccess, cudaGetLastError());
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue,
                    cudaMemAdvise(y, n * sizeof(int), static_cast<cudaMemoryAdvise>(77), device()));
  Values<int> not_managed(10);
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemPrefetchAsync(not_managed.data(), 40, device(), 0, stream));
  EXPECT_CUDA(cudaSuccess, cudaFree(y));
}

}  // namespace
