// Allocation, copies, fills.

#include <cstdint>
#include <cstring>
#include <numeric>

#include "contract.h"

namespace {

using Memory = Contract;

TEST_F(Memory, MallocIsAlignedAndSeparate) {
  char *a = nullptr, *b = nullptr;
  ASSERT_CUDA(cudaMalloc(&a, 1));
  ASSERT_CUDA(cudaMalloc(&b, 3000000));
  EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(a) % 256);
  EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(b) % 256);
  EXPECT_NE(a, b);
  EXPECT_CUDA(cudaSuccess, cudaFree(a));
  EXPECT_CUDA(cudaSuccess, cudaFree(b));
}

TEST_F(Memory, MallocOfNothingAndFreeOfNothing) {
  void* p = &p;
  EXPECT_CUDA(cudaSuccess, cudaMalloc(&p, 0));
  EXPECT_EQ(nullptr, p);
  EXPECT_CUDA(cudaSuccess, cudaFree(nullptr));
  EXPECT_CUDA(cudaSuccess, cudaFreeHost(nullptr));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMalloc(static_cast<void**>(nullptr), 1));
}

TEST_F(Memory, MoreThanThereIsFailsAndChangesNothing) {
  std::size_t free = 0, total = 0, after = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free, &total));
  EXPECT_LE(free, total);
  void* p = nullptr;
  // A driver may lend a full device host memory (WSL's does), but never so much.
  EXPECT_CUDA_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&p, 16 * total));
  EXPECT_CUDA_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&p, ~std::size_t(0) / 4));
  EXPECT_EQ(nullptr, p);
  ASSERT_CUDA(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(free, after);
}

TEST_F(Memory, MemGetInfoSeesAllocations) {
  std::size_t before = 0, during = 0, after = 0, total = 0;
  const std::size_t bytes = 64 << 20;
  ASSERT_CUDA(cudaMemGetInfo(&before, &total));
  void* p = nullptr;
  ASSERT_CUDA(cudaMalloc(&p, bytes));
  ASSERT_CUDA(cudaMemGetInfo(&during, &total));
  EXPECT_GE(before - during, bytes);
  ASSERT_CUDA(cudaFree(p));
  ASSERT_CUDA(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
}

TEST_F(Memory, FreeOfWhatIsNotOurs) {
  int here = 0;
  char* p = nullptr;
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaFree(&here));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaFreeHost(&here));
  ASSERT_CUDA(cudaMalloc(&p, 1000));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaFree(p + 256));
  EXPECT_CUDA(cudaSuccess, cudaFree(p));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaFree(p));
}

TEST_F(Memory, PinnedMemoryIsTheHosts) {
  int* p = nullptr;
  ASSERT_CUDA(cudaMallocHost(&p, 100 * sizeof(int)));
  std::iota(p, p + 100, 0);
  EXPECT_EQ(99, p[99]);
  EXPECT_CUDA(cudaSuccess, cudaFreeHost(p));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaFreeHost(p));
}

TEST_F(Memory, CopiesGoThereAndBack) {
  std::vector<int> in(10000), out(10000);
  std::iota(in.begin(), in.end(), 1);
  const std::size_t bytes = in.size() * sizeof(int);
  Values<int> a(in), b(in.size());
  ASSERT_CUDA(cudaMemcpy(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice));
  ASSERT_CUDA(cudaMemcpy(out.data(), b.data(), bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(in, out);
  ASSERT_CUDA(cudaMemset(b.data(), 0, bytes));
  ASSERT_CUDA(cudaMemcpy(b.data() + 5, in.data(), 5 * sizeof(int), cudaMemcpyDefault));
  ASSERT_CUDA(cudaMemcpy(out.data(), b.data(), bytes, cudaMemcpyDefault));
  EXPECT_EQ(0, out[4]);
  EXPECT_EQ(1, out[5]);
  EXPECT_EQ(5, out[9]);
  EXPECT_EQ(0, out[10]);
  std::vector<int> copy(in.size());
  ASSERT_CUDA(cudaMemcpy(copy.data(), in.data(), bytes, cudaMemcpyHostToHost));
  EXPECT_EQ(in, copy);
}

TEST_F(Memory, AsyncCopiesInStreamOrder) {
  oomlab::Stream stream;
  const std::size_t n = 1000, bytes = n * sizeof(int);
  int *in = nullptr, *out = nullptr;
  ASSERT_CUDA(cudaMallocHost(&in, bytes));
  ASSERT_CUDA(cudaMallocHost(&out, bytes));
  std::iota(in, in + n, 0);
  Values<int> a(n), b(n);
  EXPECT_CUDA(cudaSuccess, cudaMemcpyAsync(a.data(), in, bytes, cudaMemcpyHostToDevice, stream));
  EXPECT_CUDA(cudaSuccess, cudaMemcpyAsync(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice, stream));
  EXPECT_CUDA(cudaSuccess, cudaMemsetAsync(a.data(), 0xff, bytes, stream));
  EXPECT_CUDA(cudaSuccess, cudaMemcpyAsync(out, b.data(), bytes, cudaMemcpyDeviceToHost, stream));
  stream.synchronize();
  EXPECT_EQ(0, std::memcmp(in, out, bytes));
  EXPECT_EQ(std::vector<int>(n, -1), a.get());
  EXPECT_CUDA(cudaSuccess, cudaFreeHost(in));
  EXPECT_CUDA(cudaSuccess, cudaFreeHost(out));
}

TEST_F(Memory, PageableSourceMayChangeAfterTheCall) {
  oomlab::Stream stream;
  std::vector<int> in(5000, 7);
  Values<int> a(in.size());
  ASSERT_CUDA(cudaMemcpyAsync(a.data(), in.data(), in.size() * sizeof(int), cudaMemcpyHostToDevice, stream));
  std::fill(in.begin(), in.end(), 8);
  stream.synchronize();
  EXPECT_EQ(std::vector<int>(in.size(), 7), a.get());
}

TEST_F(Memory, PageableDestinationIsReadyAfterTheCall) {
  oomlab::Stream stream;
  Values<int> a(100);
  std::vector<int> out(100, 0);
  ASSERT_CUDA(cudaMemsetAsync(a.data(), 0x11, 400, stream));
  ASSERT_CUDA(cudaMemcpyAsync(out.data(), a.data(), 400, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(std::vector<int>(100, 0x11111111), out);
}

TEST_F(Memory, CopiesOutOfBoundsAreRefused) {
  // The real library only knows the block that the driver cut the allocation from, so this goes far beyond; where it
  // does not know that either, it would write over what others have there.
  EXPECT_IN_A_PROCESS_OF_ITS_OWN({
    std::vector<char> here(64 << 20);
    Values<char> a(1 << 20);
    return cudaMemcpy(a.data(), here.data(), here.size(), cudaMemcpyHostToDevice) == cudaErrorInvalidValue &&
           cudaMemcpy(here.data(), a.data(), here.size(), cudaMemcpyDeviceToHost) == cudaErrorInvalidValue &&
           cudaMemset(a.data(), 0, here.size()) == cudaErrorInvalidValue &&
           cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess;
  });
}

TEST_F(Memory, CopiesThatMakeNoSense) {
  int here[2] = {1, 2};
  Values<int> a(2);
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemcpy(a.data(), nullptr, 4, cudaMemcpyHostToDevice));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemcpy(nullptr, here, 4, cudaMemcpyHostToDevice));
  EXPECT_CUDA_ERROR(cudaErrorInvalidMemcpyDirection, cudaMemcpy(a.data(), here, 4, static_cast<cudaMemcpyKind>(77)));
  EXPECT_CUDA(cudaSuccess, cudaMemcpy(a.data(), here, 0, cudaMemcpyHostToDevice));
  EXPECT_CUDA(cudaSuccess, cudaMemset(a.data(), 0, 0));
}

TEST_F(Memory, FillsOfHostMemoryNeedADeviceThatReachesIt) {
  int here[2] = {1, 2}, reaches = 0;
  ASSERT_CUDA(cudaDeviceGetAttribute(&reaches, cudaDevAttrPageableMemoryAccess, 0));
  if (!reaches) {
    EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemset(here, 0, 4));
  } else {  // heterogeneous memory management, or a coherent link: then all memory is the device's, too
    EXPECT_CUDA(cudaSuccess, cudaMemset(here, 0, 4));
    ASSERT_CUDA(cudaDeviceSynchronize());
  }
  EXPECT_EQ(reaches ? 0 : 1, here[0]);
  EXPECT_EQ(2, here[1]);
}

}  // namespace
