// nvcc -o lesson lesson.cu -lcuda
//
// Fragmentation. A caching allocator keeps freed memory and hands it out again. Eight tensors of 4 MiB fill its 32 MiB,
// then every other one is freed: 16 MiB are free, but in pieces of 4 MiB, and no piece holds a tensor of 12 MiB. So the
// allocator gets 12 MiB more from the device. If the device has no more, that is "out of memory" with 16 MiB free.
//
// A tensor needs addresses side by side, but the memory behind them may be anywhere. CUDA's virtual memory management
// makes the two separately: cuMemAddressReserve() makes addresses, cuMemCreate() makes memory, and cuMemMap() puts
// memory behind addresses. So the allocator takes pages of 2 MiB (the device's granularity) away from free addresses
// and maps them side by side at new addresses: one block of 12 MiB. Nothing is copied, and live tensors stay.
// The peak: 8 tensors * 2 pages * 2 MiB = 32 MiB when pages can move. When not, 6 pages more: 44 MiB.
// The price: a request that has to move pages waits for the device, and for two calls of the driver for each page.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

constexpr int tensors = 8;                       // small ones, of which every other one is freed
constexpr int small = 2;                         // pages of a small tensor
constexpr int large = 6;                         // pages of the large one
constexpr int places = tensors * small + large;  // addresses for pages, as many as will ever be needed
constexpr int npos = -1;                         // no place
constexpr int blocks = 64;                       // of the kernel
constexpr int threads = 256;                     // of each block
static_assert(small < large && large <= tensors / 2 * small, "more than one freed tensor, at most all");

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t error, const char* call) { require(error == cudaSuccess, cudaGetErrorString(error), call); }
// The driver's functions, cu..., have codes of their own.
void check(CUresult error, const char* call) {
  if (error == CUDA_ERROR_NOT_SUPPORTED) {
    std::printf("%s: this device has no virtual memory management\n", call);
    std::exit(2);
  }
  if (error != CUDA_SUCCESS) std::printf("CUresult %d (2 is out of memory), see cuda.h\n", int(error));
  require(error == CUDA_SUCCESS, "refused by the driver", call);
}
#define CHECK(call) check(call, #call)

__global__ void fill(unsigned* p, int n, unsigned value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] = value + i;
}

CUmemAllocationProp device_memory;            // where pages are made: on device 0
CUdeviceptr base;                             // places for pages, side by side: addresses, with or without memory
int end;                                      // how many places have been handed out
CUmemGenericAllocationHandle memory[places];  // the page behind a place, or 0, which is no handle
bool used[places];                            // by a tensor
size_t page_bytes;
size_t reserved;  // bytes of memory, counted where it is made; never falls

int find(int count) {  // so many free pages side by side
  int streak = 0;
  for (int i = 0; i < end; ++i) {
    streak = memory[i] && !used[i] ? streak + 1 : 0;
    if (streak == count) return i + 1 - count;
  }
  return npos;
}
CUmemGenericAllocationHandle unmap_free_page() {
  const int i = find(1);
  if (i == npos) return 0;
  CHECK(cudaDeviceSynchronize());  // kernels may still be using what was freed
  CHECK(cuMemUnmap(base + i * page_bytes, page_bytes));
  return std::exchange(memory[i], 0);  // place i has no memory from now on
}
int take(int count, bool move) {  // returns the first place
  int first = find(count);
  if (first == npos) {
    // No piece is large enough: map pages at places that were never used.
    for (first = end; end < first + count; ++end) {
      if (move) memory[end] = unmap_free_page();  // THE MITIGATION
      if (!memory[end]) {
        CHECK(cuMemCreate(&memory[end], page_bytes, &device_memory, 0));
        reserved += page_bytes;
      }
      CHECK(cuMemMap(base + end * page_bytes, page_bytes, 0, memory[end], 0));
      used[end] = true;  // or the next unmap_free_page() would take this page
    }
    CUmemAccessDesc access = {};  // mapped memory may not be touched before access to it is granted
    access.location = device_memory.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cuMemSetAccess(base + first * page_bytes, count * page_bytes, &access, 1));
  }
  std::fill_n(used + first, count, true);  // new pages are marked already
  return first;
}
void give_back(int first, int count) { std::fill_n(used + first, count, false); }
unsigned* at(int place) { return reinterpret_cast<unsigned*>(base + place * page_bytes); }
bool holds(int place, int count, unsigned value) {
  std::vector<unsigned> v(count * page_bytes / sizeof(unsigned));
  CHECK(cudaMemcpy(v.data(), at(place), count * page_bytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < v.size(); ++i) {
    if (v[i] != value + unsigned(i)) return false;
  }
  return true;
}

size_t run(const char* way, bool move) {  // returns the peak
  const int numbers = int(page_bytes / sizeof(unsigned));
  const unsigned apart = large * numbers;  // values of two tensors differ by so much: no number twice
  reserved = 0;
  end = 0;
  CHECK(cuMemAddressReserve(&base, places * page_bytes, 0, 0, 0));  // addresses only: they cost no memory
  int t[tensors];
  for (int i = 0; i < tensors; ++i) {
    t[i] = take(small, move);
    fill<<<blocks, threads>>>(at(t[i]), small * numbers, i * apart);
    CHECK(cudaGetLastError());
  }
  for (int i = 1; i < tensors; i += 2) give_back(t[i], small);
  const size_t free_pages = std::count(used, used + end, false);
  int largest = 1;  // pages of the largest free piece
  while (find(largest + 1) != npos) ++largest;
  const int last = take(large, move);
  fill<<<blocks, threads>>>(at(last), large * numbers, tensors * apart);
  CHECK(cudaGetLastError());
  bool intact = holds(last, large, tensors * apart);
  for (int i = 0; i < tensors; i += 2) intact = intact && holds(t[i], small, i * apart);
  std::printf("  %-30s %zu MiB free, %zu MiB in one piece; then peak reserved %zu MiB\n", way,
              free_pages * page_bytes >> 20, largest * page_bytes >> 20, reserved >> 20);
  for (int i = 0; i < end; ++i) {
    if (!memory[i]) continue;
    CHECK(cuMemUnmap(base + i * page_bytes, page_bytes));
    CHECK(cuMemRelease(std::exchange(memory[i], 0)));
  }
  CHECK(cuMemAddressFree(base, places * page_bytes));
  require(intact, "every tensor has its contents");
  const int pages = tensors * small + (move ? 0 : large);
  require(reserved == pages * page_bytes, "the peak by the formula");
  return reserved;
}

void pool() {  // the same requests to CUDA's own caching allocator, which reserves larger pieces of its own choice
  void* t[tensors];
  void* last = nullptr;
  for (void*& p : t) CHECK(cudaMallocAsync(&p, small * page_bytes, 0));
  for (int i = 1; i < tensors; i += 2) CHECK(cudaFreeAsync(t[i], 0));
  CHECK(cudaMallocAsync(&last, large * page_bytes, 0));
  for (int i = 0; i < tensors; i += 2) CHECK(cudaFreeAsync(t[i], 0));
  CHECK(cudaFreeAsync(last, 0));
  cudaMemPool_t default_pool;
  size_t used_high = 0;
  size_t reserved_high = 0;
  CHECK(cudaDeviceGetDefaultMemPool(&default_pool, 0));
  CHECK(cudaMemPoolGetAttribute(default_pool, cudaMemPoolAttrUsedMemHigh, &used_high));
  CHECK(cudaMemPoolGetAttribute(default_pool, cudaMemPoolAttrReservedMemHigh, &reserved_high));
  std::printf("  cudaMallocAsync, the same      peak used %zu MiB, reserved %zu MiB\n", used_high >> 20,
              reserved_high >> 20);
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cudaFree(nullptr));  // makes the CUDA context, which cu... functions need
  device_memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;  // it stays where it is made: on the device, by the next line
  device_memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  device_memory.location.id = 0;
  CHECK(cuMemGetAllocationGranularity(&page_bytes, &device_memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  std::printf("%d tensors of %zu MiB, every other one freed; then one of %zu MiB\n", tensors, small * page_bytes >> 20,
              large * page_bytes >> 20);
  size_t peak_new = 0;
  size_t peak_moved = 0;
  if (without) peak_new = run("new pages from the device", false);
  if (with) peak_moved = run("free pages mapped side by side", true);
  std::puts("  contents of all tensors: bit-equal to what was written");
  pool();
  if (with && without) require(peak_new - peak_moved == large * page_bytes, "every page from a freed tensor");
  std::puts("PASS");
}
