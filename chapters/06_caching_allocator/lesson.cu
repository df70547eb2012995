// nvcc -o lesson lesson.cu -lcuda
//
// Fragmentation. A caching allocator keeps freed memory and hands it out again. Eight tensors of 4 MiB fill its 32 MiB,
// then every other one is freed: 16 MiB are free, but in pieces of 4 MiB, and no piece holds a tensor of 12 MiB. So the
// allocator asks the device for 12 MiB more. If the device has no more, that is "out of memory" with 16 MiB free.
//
// Only the addresses are in pieces. CUDA's virtual memory management makes addresses and memory separately:
// cuMemAddressReserve() makes addresses, cuMemCreate() makes memory, and cuMemMap() puts memory behind addresses. So
// the allocator takes pages of 2 MiB away from free addresses and maps them side by side at new addresses: one block of
// 12 MiB. Nothing is copied, and live tensors stay where they are.
//
// The peak: 8 tensors * 2 pages * 2 MiB = 32 MiB, and 6 pages more, 44 MiB, if no page can move.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

constexpr size_t tensors = 8, small = 2, large = 6;  // small and large tensors: how many pages
constexpr size_t places = 64, none = places, row = 1024, blocks = 64, threads = 256;

#define CHECK(call) check(int(call), #call)
void check(int code, const char* call) {  // cu... and cuda... functions have the same codes; 801: not on this device
  if (code) std::printf("FAIL: %s: %s\n", call, cudaGetErrorString(cudaError_t(code))), std::exit(code == 801 ? 2 : 1);
}

__global__ void fill(unsigned* p, size_t rows, unsigned first) {
  for (size_t r = blockIdx.x; r < rows; r += gridDim.x)
    for (size_t i = r * row + threadIdx.x; i < (r + 1) * row; i += blockDim.x) p[i] = first + unsigned(i);
}

const CUmemAllocationProp device0 = {
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_NONE, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, nullptr, {}};
using Memory = CUmemGenericAllocationHandle;
CUdeviceptr base;             // places for pages, side by side: addresses, with or without memory
size_t end;                   // how many places have been handed out
Memory page[places];          // the memory behind a place, or 0
bool used[places];            // by a tensor
size_t page_bytes, reserved;  // reserved: bytes of memory, counted where it is made

size_t find(size_t count) {  // so many free pages side by side
  for (size_t i = 0, run = 0; i < end; ++i)
    if ((run = page[i] && !used[i] ? run + 1 : 0) == count) return i + 1 - count;
  return none;
}
Memory unmap_free_page() {
  const size_t i = find(1);
  if (i == none) return 0;
  CHECK(cudaDeviceSynchronize());  // a kernel may still be using what was freed
  CHECK(cuMemUnmap(base + i * page_bytes, page_bytes));
  return std::exchange(page[i], 0);
}
size_t take(size_t count, bool move) {  // returns the first place
  size_t first = find(count);
  if (first == none) {  // refused: map pages at places that were never used
    for (first = end; end < first + count; ++end) {
      if (move) page[end] = unmap_free_page();  // THE MITIGATION
      if (!page[end]) CHECK(cuMemCreate(&page[end], page_bytes, &device0, 0)), reserved += page_bytes;
      CHECK(cuMemMap(base + end * page_bytes, page_bytes, 0, page[end], 0));
      used[end] = true;
    }
    const CUmemAccessDesc access = {device0.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cuMemSetAccess(base + first * page_bytes, count * page_bytes, &access, 1));
  }
  std::fill_n(used + first, count, true);
  return first;
}
void give_back(size_t first, size_t count) { std::fill_n(used + first, count, false); }
unsigned* at(size_t place) { return reinterpret_cast<unsigned*>(base + place * page_bytes); }
bool holds(size_t place, size_t count, unsigned first) {
  std::vector<unsigned> v(count * page_bytes / sizeof(unsigned));
  CHECK(cudaMemcpy(v.data(), at(place), count * page_bytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < v.size(); ++i)
    if (v[i] != first + unsigned(i)) return false;
  return true;
}

size_t run(const char* way, bool move) {  // returns the peak
  const size_t rows = page_bytes / sizeof(unsigned) / row, MiB = page_bytes >> 20;
  reserved = end = 0;
  CHECK(cuMemAddressReserve(&base, places * page_bytes, 0, 0, 0));
  give_back(take(tensors * small, move), tensors * small);  // the allocator's 32 MiB
  size_t t[tensors], free_pages = 0, largest = 1;
  for (size_t i = 0; i < tensors; ++i) fill<<<blocks, threads>>>(at(t[i] = take(small, move)), small * rows, i);
  for (size_t i = 1; i < tensors; i += 2) give_back(t[i], small), free_pages += small;
  while (find(largest + 1) != none) ++largest;
  const size_t last = take(large, move);
  fill<<<blocks, threads>>>(at(last), large * rows, 99), CHECK(cudaGetLastError());
  bool intact = holds(last, large, 99);
  for (size_t i = 0; i < tensors; i += 2) intact = intact && holds(t[i], small, i);
  std::printf("  %-30s %s (%zu MiB free, %zu MiB in one piece), then served: peak reserved %zu MiB\n", way,
              largest < large ? "refused" : "not refused", free_pages * MiB, largest * MiB, reserved >> 20);
  for (size_t i = 0; i < end; ++i)
    if (page[i]) CHECK(cuMemUnmap(base + i * page_bytes, page_bytes)), CHECK(cuMemRelease(std::exchange(page[i], 0)));
  CHECK(cuMemAddressFree(base, places * page_bytes));
  if (!intact) std::puts("FAIL: a tensor lost its contents"), std::exit(1);
  return reserved;
}

void pool() {  // the same requests to CUDA's own caching allocator, which says what it did
  void *t[tensors], *last = nullptr;
  for (void*& p : t) CHECK(cudaMallocAsync(&p, small * page_bytes, 0));
  for (size_t i = 1; i < tensors; i += 2) CHECK(cudaFreeAsync(t[i], 0));
  CHECK(cudaMallocAsync(&last, large * page_bytes, 0));
  for (size_t i = 0; i < tensors; i += 2) CHECK(cudaFreeAsync(t[i], 0));
  CHECK(cudaFreeAsync(last, 0));
  cudaMemPool_t pool;
  size_t used_high = 0, reserved_high = 0;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &used_high));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &reserved_high));
  std::printf("  cudaMallocAsync, the same      peak used %zu MiB, reserved %zu MiB\n", used_high >> 20,
              reserved_high >> 20);
}

int main() {
  CHECK(cudaFree(nullptr));  // makes the CUDA context, which cu... functions need
  CHECK(cuMemGetAllocationGranularity(&page_bytes, &device0, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  std::printf("%zu tensors of %zu MiB, every other one freed; then one of %zu MiB\n", tensors, small * page_bytes >> 20,
              large * page_bytes >> 20);
  const size_t peak_new = run("new pages from the device", false);
  const size_t peak_moved = run("free pages mapped side by side", true);
  std::puts("  contents of all tensors: bit-equal to what was written");
  pool();
  if (peak_new - peak_moved != large * page_bytes) return std::puts("FAIL: moving pages saved nothing"), 1;
  return std::puts("PASS"), 0;
}
