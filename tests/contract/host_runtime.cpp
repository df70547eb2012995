// The host runtime beyond CUDA: the machine, plan mode, faults, deferred streams, paging. Host backend only.

#include "oomlab_host.h"

#include <cuda.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "contract.h"
#include "cuda/backend.h"
#include "cuda/launch.h"

namespace {

using namespace oomlab;

void fill(int* y, int value, std::size_t n) {
  for (std::size_t i : grid_range(n)) y[i] = value;
}
void touch(char* y, std::size_t first, std::size_t last, std::size_t step) {
  for (std::size_t row : row_range((last - first) / step))
    if (threadIdx.x == 0) y[first + row * step] += 1;
}
void store_one(int* y) {
  if (threadIdx.x == 0) *y = 1;
}

/// Ends with nothing live, and with the machine that it found.
class HostRuntime : public testing::Test {
 protected:
  void SetUp() override {
    (void)cudaGetLastError();
    machine(1, 64 * MiB);
  }
  void TearDown() override {
    host::disarm_fault();
    EXPECT_EQ("nothing", host::describe(host::live()));
    host::set_planning(false);
    host::configure(initial);
    (void)cudaSetDevice(0);
    EXPECT_EQ(cudaSuccess, cudaGetLastError());
  }
  static void machine(int devices, std::size_t capacity, bool deferred = false, std::uint64_t seed = 1) {
    host::Machine m;
    m.devices = devices;
    m.capacity = capacity;
    m.deferred = deferred;
    m.seed = seed;
    host::configure(m);
  }
  static std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return free;
  }
  const host::Machine initial = host::machine();
};

// --------------------------------------------------------------------------------------------------- devices, capacity

TEST_F(HostRuntime, CapacityIsExact) {
  void *a = nullptr, *b = nullptr;
  ASSERT_CUDA(cudaMalloc(&a, 63 * MiB));
  EXPECT_EQ(MiB, free_bytes());
  EXPECT_CUDA_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&b, MiB + 1));
  ASSERT_CUDA(cudaMalloc(&b, MiB - 511));
  EXPECT_EQ(0u, free_bytes()) << "charged in steps of 512 bytes";
  EXPECT_CUDA(cudaSuccess, cudaFree(a));
  EXPECT_CUDA(cudaSuccess, cudaFree(b));
  EXPECT_EQ(64 * MiB, free_bytes());
}

TEST_F(HostRuntime, EachDeviceHasItsOwn) {
  machine(3, 8 * MiB);
  void* p[3] = {};
  for (int d = 0; d < 3; ++d) {
    ASSERT_CUDA(cudaSetDevice(d));
    ASSERT_CUDA(cudaMalloc(&p[d], 8 * MiB));
    EXPECT_EQ(0u, free_bytes()) << "on device " << d;
  }
  int can = 0;
  EXPECT_CUDA(cudaSuccess, cudaDeviceCanAccessPeer(&can, 0, 2));
  EXPECT_EQ(1, can);
  cudaStream_t stream = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_THROW(launch(fill, {1, 1, 0}, stream, nullptr, 0, std::size_t(0)), CudaError) << "another device's stream";
  EXPECT_CUDA(cudaSuccess, cudaStreamDestroy(stream));
  for (void* q : p) EXPECT_CUDA(cudaSuccess, cudaFree(q));
}

TEST_F(HostRuntime, UnusedPoolMemoryIsGivenUpBeforeAnAllocationFails) {
  cudaMemPool_t pool = nullptr;
  ASSERT_CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  std::uint64_t keep = UINT64_MAX;
  ASSERT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  void *a = nullptr, *b = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&a, 40 * MiB, nullptr));
  ASSERT_CUDA(cudaFreeAsync(a, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(24 * MiB, free_bytes());
  ASSERT_CUDA(cudaMalloc(&b, 64 * MiB));
  EXPECT_CUDA(cudaSuccess, cudaFree(b));
  ASSERT_CUDA(cudaMallocAsync(&a, 40 * MiB, nullptr));
  ASSERT_CUDA(cudaMallocAsync(&b, 24 * MiB, nullptr)) << "a chunk may be smaller than usual when little is left";
  EXPECT_CUDA_ERROR(cudaErrorMemoryAllocation, cudaMallocAsync(&b, 1, nullptr));
  ASSERT_CUDA(cudaFreeAsync(a, nullptr));
  ASSERT_CUDA(cudaFree(b));
  std::uint64_t none = 0;
  ASSERT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &none));
  ASSERT_CUDA(cudaDeviceSynchronize());
}

// CUDA leaves undefined what a copy does whose direction its addresses do not have.
TEST_F(HostRuntime, CopiesInAnotherDirectionAreRefused) {
  int here[2] = {1, 2};
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemcpy(&here[1], &here[0], 4, cudaMemcpyHostToDevice));
  EXPECT_EQ(2, here[1]);
}

TEST_F(HostRuntime, HandlesThatAreGone) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  ASSERT_CUDA(cudaEventCreate(&event));
  EXPECT_CUDA(cudaSuccess, cudaStreamDestroy(stream));
  EXPECT_CUDA(cudaSuccess, cudaEventDestroy(event));
  void* p = nullptr;
  float ms = 0;
  for (const cudaError_t error :
       {cudaStreamDestroy(stream), cudaStreamSynchronize(stream), cudaStreamQuery(stream), cudaEventDestroy(event),
        cudaEventRecord(event, nullptr), cudaEventSynchronize(event), cudaEventElapsedTime(&ms, event, event),
        cudaStreamWaitEvent(nullptr, event, 0), cudaMallocAsync(&p, 1, stream), cudaMemsetAsync(&p, 0, 1, stream),
        cudaMemcpyAsync(&p, &ms, 1, cudaMemcpyDefault, stream), cudaStreamDestroy(nullptr)})
    EXPECT_CUDA(cudaErrorInvalidResourceHandle, error);
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaGetLastError());
}

TEST_F(HostRuntime, LiveCountsEverything) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  void *a = nullptr, *b = nullptr, *c = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  ASSERT_CUDA(cudaEventCreate(&event));
  ASSERT_CUDA(cudaMalloc(&a, 1));
  ASSERT_CUDA(cudaMallocAsync(&b, 1000, stream));
  ASSERT_CUDA(cudaMallocHost(&c, 100));
  EXPECT_EQ("1 stream, 1 event, 1536 device bytes in 2 blocks, 100 pinned bytes", host::describe(host::live()));
  EXPECT_THROW(host::configure(initial), std::logic_error);
  EXPECT_THROW(host::set_planning(true), std::logic_error);
  EXPECT_FALSE(enable_planning());
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(b, stream));
  EXPECT_CUDA(cudaSuccess, cudaFree(a));
  EXPECT_CUDA(cudaSuccess, cudaFreeHost(c));
  EXPECT_CUDA(cudaSuccess, cudaStreamDestroy(stream));
  EXPECT_CUDA(cudaSuccess, cudaEventDestroy(event));
  EXPECT_EQ(host::Live{}, host::live());
}

TEST_F(HostRuntime, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        Stream stream;
        int* p = nullptr;
        CUDA_CHECK(cudaMallocAsync(&p, 4000, stream));
        launch(fill, {2, 32, 0}, stream, p, t, std::size_t(1000));
        int back = -1;
        CUDA_CHECK(cudaMemcpyAsync(&back, p + 999, sizeof back, cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaFreeAsync(p, stream));
        stream.synchronize();
        EXPECT_EQ(t, back);
      }
    });
  for (auto& thread : threads) thread.join();
}

// ----------------------------------------------------------------------------------------------------------- plan mode

TEST_F(HostRuntime, PlansPetabytesWithoutMemory) {
  ASSERT_TRUE(enable_planning());
  EXPECT_TRUE(planning());
  const std::size_t petabyte = std::size_t(1) << 50;
  char *a = nullptr, *b = nullptr;
  ASSERT_CUDA(cudaMalloc(&a, petabyte));
  ASSERT_CUDA(cudaMallocAsync(&b, petabyte, nullptr));
  EXPECT_EQ(2 * petabyte, host::live().device_bytes);
  EXPECT_CUDA(cudaSuccess, cudaMemset(a, 0, petabyte));
  EXPECT_CUDA(cudaSuccess, cudaMemcpy(a, b, petabyte, cudaMemcpyDeviceToDevice));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemset(a, 0, petabyte + 1));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaMemcpy(a + 1, b, petabyte, cudaMemcpyDeviceToDevice));
  launch(fill, {1, 1, 0}, nullptr, reinterpret_cast<int*>(a), 0, petabyte / 4);
  EXPECT_THROW(launch(fill, {0, 1, 0}, nullptr, nullptr, 0, std::size_t(0)), CudaError);
  EXPECT_CUDA(cudaSuccess, cudaFree(a));
  EXPECT_CUDA(cudaSuccess, cudaFreeAsync(b, nullptr));
  int *pinned = nullptr, *managed = nullptr;
  ASSERT_CUDA(cudaMallocHost(&pinned, 1 << 20));
  ASSERT_CUDA(cudaMallocManaged(&managed, 1 << 20));
  pinned[5] = managed[5] = 1;  // what the host may touch, it may touch here too
  EXPECT_CUDA(cudaSuccess, cudaFreeHost(pinned));
  EXPECT_CUDA(cudaSuccess, cudaFree(managed));
}

// (How long that takes: tests/run bench.)
TEST_F(HostRuntime, APlanMayHaveAHundredThousandBlocks) {
  host::set_planning(true);
  std::vector<void*> blocks(100000);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_CUDA(cudaMallocAsync(&blocks[i], 1000 + i * 512, nullptr));
    bytes += (1000 + i * 512 + 511) / 512 * 512;
  }
  EXPECT_GE(host::live().device_bytes, bytes);
  std::vector<void*> sorted = blocks;
  std::ranges::sort(sorted);
  EXPECT_EQ(std::ranges::adjacent_find(sorted), sorted.end()) << "two have one address";
  for (void* p : blocks) ASSERT_CUDA(cudaFreeAsync(p, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
}

// The same requests, planned and done, reserve the same bytes at every step.
TEST_F(HostRuntime, PlansWhatIsThenReserved) {
  const auto run = [] {
    std::vector<std::uint64_t> trace;
    cudaMemPool_t pool = nullptr;
    CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    std::mt19937 random(5);
    std::vector<void*> blocks;
    for (int i = 0; i < 2000; ++i) {
      if (blocks.size() > 60 || (!blocks.empty() && random() % 3 == 0)) {
        const std::size_t victim = random() % blocks.size();
        CUDA_CHECK(cudaFreeAsync(blocks[victim], nullptr));
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(victim));
      } else {
        void* p = nullptr;
        CUDA_CHECK(cudaMallocAsync(&p, 1 + random() % (random() % 4 ? 10000 : 3000000), nullptr));
        blocks.push_back(p);
      }
      if (random() % 50 == 0) CUDA_CHECK(cudaDeviceSynchronize());
      for (const cudaMemPoolAttr attr : {cudaMemPoolAttrReservedMemCurrent, cudaMemPoolAttrUsedMemCurrent,
                                         cudaMemPoolAttrReservedMemHigh, cudaMemPoolAttrUsedMemHigh}) {
        std::uint64_t value = 0;
        CUDA_CHECK(cudaMemPoolGetAttribute(pool, attr, &value));
        trace.push_back(value);
      }
    }
    for (void* p : blocks) CUDA_CHECK(cudaFreeAsync(p, nullptr));
    CUDA_CHECK(cudaDeviceSynchronize());
    return trace;
  };
  machine(1, 512 * MiB);
  const auto done = run();
  host::set_planning(true);
  const auto planned = run();
  EXPECT_EQ(done, planned);
  EXPECT_GT(std::set<std::uint64_t>(done.begin(), done.end()).size(), 100u);
}

TEST_F(HostRuntime, PlansVirtualMemory) {
  host::set_planning(true);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const std::size_t size = std::size_t(1) << 45;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(CUDA_SUCCESS, cuMemAddressReserve(&address, size, 0, 0, 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemCreate(&handle, size, &properties, 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemMap(address, size, 0, handle, 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemSetAccess(address, size, &access, 1));
  EXPECT_EQ(size, host::live().device_bytes);
  EXPECT_CUDA(cudaSuccess, cudaMemset(reinterpret_cast<void*>(address), 0, size));
  EXPECT_EQ(CUDA_SUCCESS, cuMemUnmap(address, size));
  EXPECT_EQ(CUDA_SUCCESS, cuMemRelease(handle));
  EXPECT_EQ(CUDA_SUCCESS, cuMemAddressFree(address, size));
}

// -------------------------------------------------------------------------------------------------------------- faults

// Every call fails when it is told to, with a code, sets the last error, and leaks nothing.
TEST_F(HostRuntime, EveryCallCanFail) {
  static void *p, *q;
  static cudaStream_t stream;
  static cudaEvent_t event;
  struct Case {
    const char* site;
    std::function<cudaError_t()> call;
  };
  ASSERT_CUDA(cudaMalloc(&p, 64));
  ASSERT_CUDA(cudaStreamCreate(&stream));
  ASSERT_CUDA(cudaEventCreate(&event));
  cudaMemPool_t pool = nullptr;
  ASSERT_CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  int n = 0;
  std::size_t a = 0, b = 0;
  std::uint64_t big = 0;
  cudaDeviceProp prop;
  const Case cases[] = {
      {"cudaMalloc", [&] { return cudaMalloc(&q, 64); }},
      {"cudaMallocHost", [&] { return cudaMallocHost(&q, 64); }},
      {"cudaMallocManaged", [&] { return cudaMallocManaged(&q, 64); }},
      {"cudaMallocAsync", [&] { return cudaMallocAsync(&q, 64, stream); }},
      {"cudaMallocFromPoolAsync", [&] { return cudaMallocFromPoolAsync(&q, 64, pool, stream); }},
      {"cudaMemcpy", [&] { return cudaMemcpy(p, &n, 4, cudaMemcpyHostToDevice); }},
      {"cudaMemcpyAsync", [&] { return cudaMemcpyAsync(p, &n, 4, cudaMemcpyHostToDevice, stream); }},
      {"cudaMemset", [&] { return cudaMemset(p, 0, 4); }},
      {"cudaMemsetAsync", [&] { return cudaMemsetAsync(p, 0, 4, stream); }},
      {"cudaMemGetInfo", [&] { return cudaMemGetInfo(&a, &b); }},
      {"cudaStreamCreateWithFlags", [&] { return cudaStreamCreate(&stream); }},
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream); }},
      {"cudaStreamWaitEvent", [&] { return cudaStreamWaitEvent(stream, event, 0); }},
      {"cudaEventCreate", [&] { return cudaEventCreate(&event); }},
      {"cudaEventRecord", [&] { return cudaEventRecord(event, stream); }},
      {"cudaEventSynchronize", [&] { return cudaEventSynchronize(event); }},
      {"cudaDeviceSynchronize", [&] { return cudaDeviceSynchronize(); }},
      {"cudaGetDevice", [&] { return cudaGetDevice(&n); }},
      {"cudaSetDevice", [&] { return cudaSetDevice(0); }},
      {"cudaGetDeviceCount", [&] { return cudaGetDeviceCount(&n); }},
      {"cudaGetDeviceProperties", [&] { return cudaGetDeviceProperties(&prop, 0); }},
      {"cudaMemPoolGetAttribute", [&] { return cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &big); }},
      {"cudaMemPoolTrimTo", [&] { return cudaMemPoolTrimTo(pool, 0); }},
      {"cudaLaunchKernelEx",
       [&] {
         cudaLaunchConfig_t config{};
         config.stream = stream;
         return cudaLaunchKernelEx(&config, store_one, static_cast<int*>(p));
       }},
  };
  for (const Case& c : cases) {
    const host::Live before = host::live();
    host::arm_fault(1, false);
    const cudaError_t error = c.call();
    EXPECT_NE(cudaSuccess, error) << c.site;
    EXPECT_STREQ(c.site, host::fault_site());
    EXPECT_EQ(1u, host::fault_calls()) << c.site << " counts what it calls itself";
    EXPECT_EQ(error, cudaGetLastError()) << c.site;
    EXPECT_EQ(before, host::live()) << c.site;
    EXPECT_EQ(cudaSuccess, cudaGetLastError());
  }
  // What gives something back does so, and then complains.
  const std::pair<const char*, std::function<cudaError_t()>> releases[] = {
      {"cudaFree", [&] { return cudaFree(p); }},
      {"cudaEventDestroy", [&] { return cudaEventDestroy(event); }},
      {"cudaStreamDestroy", [&] { return cudaStreamDestroy(stream); }},
  };
  for (const auto& [site, call] : releases) {
    host::arm_fault(1, false);
    EXPECT_NE(cudaSuccess, call()) << site;
    EXPECT_STREQ(site, host::fault_site());
    EXPECT_NE(cudaSuccess, cudaGetLastError());
  }
  EXPECT_EQ("nothing", host::describe(host::live()));
}

TEST_F(HostRuntime, FaultsAreCountedAndCanGoOn) {
  int n = 0;
  host::arm_fault(0, false);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(cudaSuccess, cudaGetDevice(&n));
  EXPECT_EQ(5u, host::fault_calls());
  EXPECT_STREQ("", host::fault_site());
  host::arm_fault(3, false);
  std::string seen;
  for (int i = 0; i < 5; ++i) seen += cudaGetDevice(&n) == cudaSuccess ? '.' : 'x';
  EXPECT_EQ("..x..", seen);
  host::arm_fault(3, true);
  seen.clear();
  for (int i = 0; i < 5; ++i) seen += cudaGetDevice(&n) == cudaSuccess ? '.' : 'x';
  EXPECT_EQ("..xxx", seen);
  (void)cudaGetLastError();
  host::disarm_fault();
  EXPECT_EQ(cudaSuccess, cudaGetDevice(&n));
  EXPECT_FALSE(host::fault_point("test"));
  host::arm_fault(1, true);
  EXPECT_TRUE(host::fault_point("test"));
  {
    const host::RuntimeScope scope;
    EXPECT_TRUE(host::inside_runtime());
    EXPECT_FALSE(host::fault_point("test"));
  }
  EXPECT_FALSE(host::inside_runtime());
}

// For ranks: a thread each, a device each.
TEST_F(HostRuntime, FaultsOfOneDeviceLeaveTheOthersAlone) {
  machine(3, 8 * MiB);
  host::arm_fault(2, true, 1);
  std::string seen;
  for (const int device : {0, 1, 2, 1, 2, 0, 1}) {
    {
      const host::RuntimeScope uncounted;
      CUDA_CHECK(cudaSetDevice(device));
    }
    seen += host::fault_point("test") ? 'x' : '.';
  }
  EXPECT_EQ("...x..x", seen);
}

// ---------------------------------------------------------------------------------------------------- deferred streams

class Deferred : public HostRuntime, public testing::WithParamInterface<std::uint64_t> {
 protected:
  void SetUp() override {
    HostRuntime::SetUp();
    machine(1, 64 * MiB, true, GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, Deferred, testing::Range<std::uint64_t>(1, 9));

TEST_P(Deferred, AResultIsNotThereBeforeItIsWaitedFor) {
  Stream stream;
  int *device = nullptr, *pinned = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, 4));
  ASSERT_CUDA(cudaMallocHost(&pinned, 4));
  *pinned = 0;
  launch(store_one, {1, 32, 0}, stream, device);
  ASSERT_CUDA(cudaMemcpyAsync(pinned, device, 4, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(0, *pinned) << "the program forgot to wait, and it shows";
  EXPECT_CUDA_ERROR(cudaErrorNotReady, cudaStreamQuery(stream));
  stream.synchronize();
  EXPECT_EQ(1, *pinned);
  EXPECT_CUDA(cudaSuccess, cudaStreamQuery(stream));
  EXPECT_CUDA(cudaSuccess, cudaFreeHost(pinned));
  EXPECT_CUDA(cudaSuccess, cudaFree(device));
}

TEST_P(Deferred, APinnedSourceIsReadLate) {
  Stream stream;
  int *device = nullptr, *pinned = nullptr, back = 0;
  ASSERT_CUDA(cudaMalloc(&device, 4));
  ASSERT_CUDA(cudaMallocHost(&pinned, 4));
  *pinned = 1;
  ASSERT_CUDA(cudaMemcpyAsync(device, pinned, 4, cudaMemcpyHostToDevice, stream));
  *pinned = 2;  // too early
  ASSERT_CUDA(cudaMemcpyAsync(&back, device, 4, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(2, back);
  EXPECT_CUDA(cudaSuccess, cudaFreeHost(pinned));
  EXPECT_CUDA(cudaSuccess, cudaFree(device));
}

// Neither by the stream that gets it nor by anybody who gets it as part of a larger piece.
TEST_P(Deferred, PoolMemoryIsNotUsedAgainBeforeTheWorkOnItIsDone) {
  for (const bool low_first : {true, false})
    for (const bool low_is_slow : {true, false}) {
      const Stream a, b, c;
      int *seen = nullptr, *low = nullptr, *high = nullptr, *both = nullptr;
      ASSERT_CUDA(cudaMallocHost(&seen, 2 * sizeof(int)));
      ASSERT_CUDA(cudaMallocAsync(&low, 16 * MiB, a));
      ASSERT_CUDA(cudaMallocAsync(&high, 16 * MiB, b));
      const auto work = [&](const Stream& stream, int* block, int* to, bool slow) {
        launch(fill, {1, 1, 0}, stream, block, 1, std::size_t(1));
        for (int i = 0; slow && i < 40; ++i) launch(store_one, {1, 1, 0}, stream, block + 1);  // beside what is seen
        ASSERT_CUDA(cudaMemcpyAsync(to, block, sizeof(int), cudaMemcpyDeviceToHost, stream));
      };
      work(a, low, seen, low_is_slow);
      work(b, high, seen + 1, !low_is_slow);
      if (low_first) {
        ASSERT_CUDA(cudaFreeAsync(low, a));
      }
      ASSERT_CUDA(cudaFreeAsync(high, b));
      if (!low_first) {
        ASSERT_CUDA(cudaFreeAsync(low, a));
      }
      ASSERT_CUDA(cudaMallocAsync(&both, 32 * MiB, c));
#ifndef OOMLAB_HOST_ASAN  // where every block has storage of its own
      EXPECT_EQ(low, both);
#endif
      launch(fill, {1, 1, 0}, c, both, 2, std::size_t(1));
      launch(fill, {1, 1, 0}, c, both + 16 * MiB / sizeof(int), 2, std::size_t(1));
      c.synchronize();
      ASSERT_CUDA(cudaDeviceSynchronize());
      EXPECT_EQ(1, seen[0]);
      EXPECT_EQ(1, seen[1]);
      ASSERT_CUDA(cudaFreeAsync(both, c));
      ASSERT_CUDA(cudaFreeHost(seen));
    }
}

#ifndef OOMLAB_HOST_ASAN  // where every block has storage of its own
TEST(HostStorage, LargeBlocksTakeThePagesOfThoseThatWereFreed) {
  void *first = nullptr, *second = nullptr;
  ASSERT_CUDA(cudaMalloc(&first, 8 * MiB));
  ASSERT_CUDA(cudaFree(first));
  ASSERT_CUDA(cudaMalloc(&second, 8 * MiB - 100));  // as many pages
  EXPECT_EQ(second, first);
  ASSERT_CUDA(cudaFree(second));
}
#endif

TEST_P(Deferred, TrimmingLeavesWhatQueuedWorkUses) {
  const Stream stream;
  cudaMemPool_t pool = nullptr;
  ASSERT_CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  int* block = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&block, 16 * MiB, stream));
  launch(fill, {1, 1, 0}, stream, block, 1, 16 * MiB / sizeof(int));
  ASSERT_CUDA(cudaFreeAsync(block, stream));
  ASSERT_CUDA(cudaMemPoolTrimTo(pool, 0));
  std::uint64_t reserved = 0;
  ASSERT_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  EXPECT_GE(reserved, 16 * MiB);
  stream.synchronize();
  ASSERT_CUDA(cudaMemPoolTrimTo(pool, 0));
  ASSERT_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  EXPECT_EQ(reserved, 0u);
}

TEST_P(Deferred, EventsAndTimes) {
  Stream stream;
  Event start, stop;
  start.record(stream);
  stop.record(stream);
  float ms = 0;
  EXPECT_CUDA_ERROR(cudaErrorNotReady, cudaEventElapsedTime(&ms, start, stop));
  EXPECT_CUDA(cudaSuccess, cudaEventSynchronize(stop));
  EXPECT_CUDA(cudaSuccess, cudaEventElapsedTime(&ms, start, stop));
  EXPECT_GE(ms, 0);
}

TEST_F(HostRuntime, AMissingEventShowsForSomeOrder) {
  std::set<int> seen_without, seen_with;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    machine(1, 64 * MiB, true, seed);
    for (const bool wait : {false, true}) {
      Stream first, second;
      Event done;
      int *device = nullptr, back = -1;
      ASSERT_CUDA(cudaMalloc(&device, 4));
      ASSERT_CUDA(cudaMemset(device, 0, 4));
      ASSERT_CUDA(cudaDeviceSynchronize());
      launch(store_one, {1, 32, 0}, first, device);
      done.record(first);
      if (wait) CUDA_CHECK(cudaStreamWaitEvent(second, done, 0));
      ASSERT_CUDA(cudaMemcpyAsync(&back, device, 4, cudaMemcpyDeviceToHost, second));
      (wait ? seen_with : seen_without).insert(back);
      ASSERT_CUDA(cudaFree(device));
    }
  }
  EXPECT_EQ((std::set<int>{0, 1}), seen_without);
  EXPECT_EQ((std::set<int>{1}), seen_with);
}

// A plain copy has read what is pageable when it returns. On its way to the device it has no order with streams that do
// not block.
TEST_F(HostRuntime, AMissingWaitAfterAPlainCopyShowsForSomeOrder) {
  std::set<int> seen_without, seen_with;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    machine(1, 64 * MiB, true, seed);
    for (const bool wait : {false, true}) {
      Stream stream;
      int *device = nullptr, value = 1, back = -1;
      ASSERT_CUDA(cudaMalloc(&device, 4));
      ASSERT_CUDA(cudaMemset(device, 0, 4));
      ASSERT_CUDA(cudaDeviceSynchronize());
      ASSERT_CUDA(cudaMemcpy(device, &value, 4, cudaMemcpyHostToDevice));
      value = 2;
      if (wait) CUDA_CHECK(cudaStreamSynchronize(nullptr));
      ASSERT_CUDA(cudaMemcpyAsync(&back, device, 4, cudaMemcpyDeviceToHost, stream));
      (wait ? seen_with : seen_without).insert(back);
      ASSERT_CUDA(cudaFree(device));
    }
  }
  EXPECT_EQ((std::set<int>{0, 1}), seen_without);
  EXPECT_EQ((std::set<int>{1}), seen_with);
}

// -------------------------------------------------------------------------------------------------------------- paging

class Paging : public HostRuntime {
 protected:
  static constexpr std::size_t page = 64 << 10;
  static constexpr std::size_t pages = 256;
  void SetUp() override {
    HostRuntime::SetUp();
    ASSERT_CUDA(cudaMallocManaged(&data, pages * page));
    for (std::size_t i = 0; i < pages; ++i) data[i * page] = 1;
    (void)host::take_paging_counters();
  }
  void TearDown() override {
    EXPECT_CUDA(cudaSuccess, cudaFree(data));
    HostRuntime::TearDown();
  }
  void touch_pages(std::size_t first, std::size_t last, unsigned grid = 4) {
    launch(touch, {grid, 32, 0}, nullptr, data, first * page, last * page, page);
  }
  char* data = nullptr;
};

TEST_F(Paging, TouchedPagesMoveOnce) {
  const std::size_t free = free_bytes();
  touch_pages(0, 100);
  touch_pages(0, 100);
  auto counters = host::take_paging_counters();
  EXPECT_EQ(100u, counters.faults);
  EXPECT_EQ(100u, counters.pages_in);
  EXPECT_EQ(0u, counters.pages_evicted);
  EXPECT_EQ(100 * page, free - free_bytes()) << "resident pages take memory of the device";
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(3, data[i * page]);
  counters = host::take_paging_counters();
  EXPECT_EQ(100u, counters.faults) << "and they move back when the host touches them";
  EXPECT_EQ(free, free_bytes());
}

TEST_F(Paging, PrefetchedPagesDoNotFault) {
  ASSERT_CUDA(cudaMemPrefetchAsync(data, pages * page, {cudaMemLocationTypeDevice, 0}, 0, nullptr));
  touch_pages(0, pages);
  ASSERT_CUDA(cudaMemPrefetchAsync(data, pages * page, {cudaMemLocationTypeHost, 0}, 0, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < pages; ++i) data[i * page] = 0;
  const auto counters = host::take_paging_counters();
  EXPECT_EQ(0u, counters.faults);
  EXPECT_EQ(pages, counters.pages_in);
  EXPECT_EQ(0u, counters.pages_evicted);
}

TEST_F(Paging, OldPagesLeaveWhenTheDeviceIsFull) {
  void* other = nullptr;
  ASSERT_CUDA(cudaMalloc(&other, 64 * MiB - 128 * page));  // room for half of them
  touch_pages(0, pages, 1);
  auto counters = host::take_paging_counters();
  EXPECT_EQ(pages, counters.pages_in);
  EXPECT_EQ(pages - 128, counters.pages_evicted);
  EXPECT_EQ(0u, free_bytes());
  touch_pages(128, pages, 1);  // still there
  counters = host::take_paging_counters();
  EXPECT_EQ(0u, counters.faults);
  touch_pages(0, pages, 4);  // all of them, from several threads
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < pages; ++i) ASSERT_EQ(i < 128 ? 3 : 4, data[i * page]) << i;
  ASSERT_CUDA(cudaFree(other));
}

TEST_F(Paging, AnAllocationPushesPagesOut) {
  touch_pages(0, pages);
  (void)host::take_paging_counters();
  void* other = nullptr;
  ASSERT_CUDA(cudaMalloc(&other, 64 * MiB - 100 * page));
  EXPECT_EQ(pages - 100, host::take_paging_counters().pages_evicted);
  ASSERT_CUDA(cudaFree(other));
}

TEST_F(Paging, FarMoreThanTheDeviceHas) {
  char* much = nullptr;
  ASSERT_CUDA(cudaMallocManaged(&much, 160 * MiB));  // on a device of 64 MiB
  for (int round = 0; round < 2; ++round)
    launch(touch, {4, 32, 0}, nullptr, much, std::size_t(0), std::size_t(160 * MiB), page);
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_GE(host::take_paging_counters().pages_evicted, (160 - 64) * MiB / page);
  EXPECT_CUDA(cudaSuccess, cudaFree(much));
}

// The bytes of a pattern worked out by hand: 4 pages of 8 fit. FIFO: a cyclic walk over 8 finds nothing twice.
TEST_F(Paging, BytesOfAHandWorkedPattern) {
  // The least that a device keeps is more than 4 pages, so the room is the least, n, and the walk is over 2n.
  const std::size_t n = std::max(16u, 4 * std::thread::hardware_concurrency());
  ASSERT_LE(2 * n, pages);
  void* other = nullptr;
  ASSERT_CUDA(cudaMalloc(&other, 64 * MiB - n * page));
  const auto expect = [](std::size_t faults, std::size_t to_device, std::size_t to_host, std::size_t prefetched) {
    const auto counters = host::take_paging_counters();
    EXPECT_EQ(faults, counters.faults);
    EXPECT_EQ(to_device * page, counters.bytes_to_device);
    EXPECT_EQ(to_host * page, counters.bytes_to_host);
    EXPECT_EQ(prefetched * page, counters.bytes_prefetched);
  };
  touch_pages(0, 2 * n, 1);  // all come, the first n leave again
  expect(2 * n, 2 * n, n, 0);
  touch_pages(0, 2 * n, 1);  // the same again: what is needed next has just left
  expect(2 * n, 2 * n, 2 * n, 0);
  touch_pages(n, 2 * n, 1);  // the second half is still there
  expect(0, 0, 0, 0);
  ASSERT_CUDA(cudaMemPrefetchAsync(data, n / 2 * page, {cudaMemLocationTypeDevice, 0}, 0, nullptr));
  expect(0, n / 2, n / 2, n / 2);
  touch_pages(0, n / 2, 1);
  expect(0, 0, 0, 0);
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < 2 * n; ++i) ASSERT_EQ(i < n / 2 || i >= n ? 4 : 3, data[i * page]) << i;
  expect(n, 0, n, 0);  // the host read all of them; n were on the device
  ASSERT_CUDA(cudaFree(other));
}

TEST_F(Paging, AFreshPageMovesNoBytes) {
  char* fresh = nullptr;
  ASSERT_CUDA(cudaMallocManaged(&fresh, 10 * page));
  launch(touch, {1, 32, 0}, nullptr, fresh, std::size_t(0), 10 * page, page);
  auto counters = host::take_paging_counters();
  EXPECT_EQ(10u, counters.faults);
  EXPECT_EQ(10u, counters.pages_in);
  EXPECT_EQ(0u, counters.bytes_to_device);
  ASSERT_CUDA(cudaDeviceSynchronize());
  (void)*static_cast<volatile char*>(fresh);
  counters = host::take_paging_counters();
  EXPECT_EQ(1u, counters.faults);
  EXPECT_EQ(page, counters.bytes_to_host);
  EXPECT_CUDA(cudaSuccess, cudaFree(fresh));
}

TEST_F(Paging, AccessedByMapsPagesWhereTheyAre) {
  ASSERT_CUDA(cudaMemAdvise(data, pages * page, cudaMemAdviseSetAccessedBy, {cudaMemLocationTypeDevice, 0}));
  touch_pages(0, pages);
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < pages; ++i) ASSERT_EQ(2, data[i * page]);
  const auto counters = host::take_paging_counters();
  EXPECT_EQ(0u, counters.faults);
  EXPECT_EQ(0u, counters.pages_in);
}

TEST_F(Paging, APageAtItsPreferredLocationStaysThere) {
  ASSERT_CUDA(cudaMemAdvise(data, pages * page, cudaMemAdviseSetPreferredLocation, {cudaMemLocationTypeHost, 0}));
  touch_pages(0, 20);
  touch_pages(0, 20);
  auto counters = host::take_paging_counters();
  EXPECT_EQ(20u, counters.faults) << "the first touch maps it";
  EXPECT_EQ(0u, counters.pages_in + counters.bytes_to_device + counters.bytes_to_host);
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < 20; ++i) ASSERT_EQ(3, data[i * page]);

  char* fresh = nullptr;  // a fresh page is made where it would rather be
  ASSERT_CUDA(cudaMallocManaged(&fresh, page));
  ASSERT_CUDA(cudaMemAdvise(fresh, page, cudaMemAdviseSetPreferredLocation, {cudaMemLocationTypeHost, 0}));
  launch(touch, {1, 32, 0}, nullptr, fresh, std::size_t(0), page, page);
  counters = host::take_paging_counters();
  EXPECT_EQ(1u, counters.faults);
  EXPECT_EQ(0u, counters.pages_in);
  EXPECT_CUDA(cudaSuccess, cudaFree(fresh));
}

void read_pages(const char* y, std::size_t count, std::size_t step, int* sum) {
  int mine = 0;
  for (std::size_t row : row_range(count))
    if (threadIdx.x == 0) mine += y[row * step];
  if (threadIdx.x == 0) atomicAdd(sum, mine);
}

TEST_F(Paging, ReadMostlyPagesAreCopiedUntilSomebodyWrites) {
  int* sum = nullptr;
  ASSERT_CUDA(cudaMalloc(&sum, sizeof(int)));
  ASSERT_CUDA(cudaMemset(sum, 0, sizeof(int)));
  ASSERT_CUDA(cudaMemAdvise(data, pages * page, cudaMemAdviseSetReadMostly, {cudaMemLocationTypeHost, 0}));
  launch(read_pages, {4, 32, 0}, nullptr, data, pages, page, sum);
  ASSERT_CUDA(cudaDeviceSynchronize());
  auto counters = host::take_paging_counters();
  EXPECT_EQ(pages, counters.faults);
  EXPECT_EQ(pages * page, counters.bytes_to_device);
  for (std::size_t i = 0; i < pages; ++i) ASSERT_EQ(1, data[i * page]);
  launch(read_pages, {4, 32, 0}, nullptr, data, pages, page, sum);
  ASSERT_CUDA(cudaDeviceSynchronize());
  counters = host::take_paging_counters();
  EXPECT_EQ(0u, counters.faults) << "both sides have a copy";
  EXPECT_EQ(0u, counters.bytes_to_host);
  void* other = nullptr;  // copies leave a full device without a byte
  ASSERT_CUDA(cudaMalloc(&other, 64 * MiB - 200 * page));
  counters = host::take_paging_counters();
  EXPECT_EQ(pages - 200 + 1, counters.pages_evicted) << "the sum takes one step of the device";
  EXPECT_EQ(0u, counters.bytes_to_host);
  ASSERT_CUDA(cudaFree(other));
  data[(pages - 1) * page] = 5;  // the host writes: the device's copy is gone
  counters = host::take_paging_counters();
  EXPECT_EQ(1u, counters.faults);
  EXPECT_EQ(0u, counters.bytes_to_host + counters.bytes_to_device);
  touch_pages(pages - 2, pages);  // a device writes one that it has, and one that it must copy first
  counters = host::take_paging_counters();
  EXPECT_EQ(3u, counters.faults);
  EXPECT_EQ(page, counters.bytes_to_device);
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(2, data[(pages - 2) * page]);
  EXPECT_EQ(6, data[(pages - 1) * page]);
  EXPECT_EQ(2 * page, host::take_paging_counters().bytes_to_host);
  int value = 0;
  ASSERT_CUDA(cudaMemcpy(&value, sum, sizeof(int), cudaMemcpyDefault));
  EXPECT_EQ(int(2 * pages), value);
  ASSERT_CUDA(cudaFree(sum));
}

TEST_F(Paging, ContentsSurviveEvictionAlsoUnderBlasThreads) {
  constexpr int n = 512;  // C = A B on small integers is exact; each matrix is 1 MiB, and 1 MiB is what fits
  float* matrices[3];
  for (float*& matrix : matrices) ASSERT_CUDA(cudaMallocManaged(&matrix, n * n * sizeof(float)));
  for (int i = 0; i < n * n; ++i) matrices[0][i] = float(i % 7), matrices[1][i] = float(i % 5);
  void* other = nullptr;
  ASSERT_CUDA(cudaMalloc(&other, 63 * MiB));
  cublasHandle_t blas = nullptr;
  ASSERT_EQ(CUBLAS_STATUS_SUCCESS, cublasCreate(&blas));
  const float one = 1, zero = 0;
  (void)host::take_paging_counters();
  ASSERT_EQ(CUBLAS_STATUS_SUCCESS, cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, matrices[0], n,
                                               matrices[1], n, &zero, matrices[2], n));
  EXPECT_GT(host::take_paging_counters().pages_evicted, 0u);
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < n * n; ++i) ASSERT_TRUE(matrices[0][i] == i % 7 && matrices[1][i] == i % 5) << i;
  for (const int column : {0, 17, n - 1})
    for (int row = 0; row < n; ++row) {
      double sum = 0;
      for (int k = 0; k < n; ++k) sum += double(matrices[0][k * n + row]) * matrices[1][column * n + k];
      ASSERT_EQ(sum, matrices[2][column * n + row]) << row << "," << column;
    }
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS, cublasDestroy(blas));
  ASSERT_CUDA(cudaFree(other));
  for (float* matrix : matrices) ASSERT_CUDA(cudaFree(matrix));
}

TEST_F(Paging, OtherFaultsStillEndTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        char* p = nullptr;
        (void)cudaMallocManaged(&p, 100);
        std::uintptr_t nowhere = reinterpret_cast<std::uintptr_t>(p) >> 40;  // not an address of anything
        *reinterpret_cast<volatile char*>(nowhere) = 1;
      },
      "");
}

TEST_F(HostRuntime, VirtualMemoryWithoutAccessFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(CUDA_SUCCESS, cuMemAddressReserve(&address, 2 * MiB, 0, 0, 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemCreate(&handle, 2 * MiB, &properties, 0));
  ASSERT_EQ(CUDA_SUCCESS, cuMemMap(address, 2 * MiB, 0, handle, 0));
  EXPECT_DEATH(launch(store_one, {1, 1, 0}, nullptr, reinterpret_cast<int*>(address)), "");
  EXPECT_EQ(CUDA_SUCCESS, cuMemUnmap(address, 2 * MiB));
  EXPECT_EQ(CUDA_SUCCESS, cuMemRelease(handle));
  EXPECT_EQ(CUDA_SUCCESS, cuMemAddressFree(address, 2 * MiB));
}

}  // namespace
