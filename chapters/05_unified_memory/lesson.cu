// nvcc -o lesson lesson.cu
// CUDA 12.4 or newer, and a GPU with concurrentManagedAccess, or it ends with exit code 2.
// More than the device has. A training step reads and writes all of a model's state, but one layer at a time. The other
// layers can wait in the host's memory, which is larger. There are two ways to do it.
//
// Streaming: two buffers on the device take turns. While a layer is updated in one, the next is copied into the other.
// A copy runs beside a kernel only in another stream and if its host side is pinned, so each buffer has a stream and a
// pinned twin on the host. An event says when a layer is back in the twin; before that no other may have the buffer.
//
// Managed (or unified) memory, from cudaMallocManaged(), has one address for both sides. Its pages move to the side
// that touches them (on demand), or earlier (prefetched), or stay on the host and are used from there (advised). On the
// device they use memory that no cudaMalloc() of ours counts: on demand, pages stay there until the device is full.
//
// The peak, with layers of 2 MiB: 8 * 2 MiB = 16 MiB with all on the device, or on demand (all of this fits, so none
// has to leave); 2 * 2 MiB = 4 MiB streamed or prefetched; nothing advised.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr size_t weights = 1 << 18, numbers = 2 * weights, bytes = numbers * sizeof(float);  // of one layer
constexpr int layers = 8, passes = 3, blocks = 32, threads = 256;

#define CHECK(call) check(call, #call)
void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) std::printf("FAIL: %s: %s\n", call, cudaGetErrorString(error)), std::exit(1);
}

// A layer's weights and their momentum, updated by SGD. The loss is |w - 1|^2 / 2.
__global__ void update(float* w, float* momentum) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < weights; i += gridDim.x * blockDim.x) {
    momentum[i] = 0.9f * momentum[i] + (w[i] - 1);
    w[i] -= 0.1f * momentum[i];
  }
}

size_t allocated, in_use, free_before;  // bytes of the device: from cudaMalloc; by cudaMemGetInfo
float* allocate() {
  float* p = nullptr;
  CHECK(cudaMalloc(&p, bytes)), allocated += bytes;  // nothing is freed before the end, so this is the peak
  return p;
}
size_t free_bytes() {
  size_t unused = 0, total = 0;
  CHECK(cudaMemGetInfo(&unused, &total));
  return unused;
}
void see_peak() { in_use = std::max(in_use, free_before - std::min(free_before, free_bytes())); }
enum Way { on_device, streamed, on_demand, prefetched, advised };
struct Buffer {
  float *device = nullptr, *pinned = nullptr, *home = nullptr;  // home: where in `state` its layer belongs
  cudaStream_t stream = nullptr;
  cudaEvent_t back = nullptr;  // its layer is in `pinned` again
};
void bring_home(const Buffer& b) {
  if (b.home) CHECK(cudaEventSynchronize(b.back)), std::memcpy(b.home, b.pinned, bytes);
}
void train(float* state, Way way) {  // on_device has more buffers, and copies as often
  std::vector<Buffer> buffers(layers);
  if (way == streamed) buffers.resize(2);  // THE MITIGATION
  for (Buffer& b : buffers) {
    b.device = allocate();
    CHECK(cudaMallocHost(&b.pinned, bytes));
    CHECK(cudaStreamCreate(&b.stream)), CHECK(cudaEventCreate(&b.back));
  }
  for (size_t i = 0; i < passes * layers; ++i) {
    Buffer& b = buffers[i % buffers.size()];
    bring_home(b);  // THE MITIGATION
    b.home = state + (i % layers) * numbers;
    std::memcpy(b.pinned, b.home, bytes);
    CHECK(cudaMemcpyAsync(b.device, b.pinned, bytes, cudaMemcpyHostToDevice, b.stream));
    update<<<blocks, threads, 0, b.stream>>>(b.device, b.device + weights);
    CHECK(cudaMemcpyAsync(b.pinned, b.device, bytes, cudaMemcpyDeviceToHost, b.stream));
    CHECK(cudaEventRecord(b.back, b.stream)), CHECK(cudaGetLastError());
    see_peak();
  }
  for (Buffer& b : buffers) {
    bring_home(b);
    CHECK(cudaEventDestroy(b.back)), CHECK(cudaStreamDestroy(b.stream));
    CHECK(cudaFreeHost(b.pinned)), CHECK(cudaFree(b.device));
  }
}
void train_managed(float* state, Way way) {
  const cudaMemLocation device = {cudaMemLocationTypeDevice, 0}, host = {cudaMemLocationTypeHost, 0};
  float* managed = nullptr;
  CHECK(cudaMallocManaged(&managed, layers * bytes));
  std::memcpy(managed, state, layers * bytes);
  if (way == advised) {
    CHECK(cudaMemAdvise(managed, layers * bytes, cudaMemAdviseSetPreferredLocation, host));
    CHECK(cudaMemAdvise(managed, layers * bytes, cudaMemAdviseSetAccessedBy, device));
  }
  for (size_t i = 0; i < passes * layers; ++i) {
    float *now = managed + (i % layers) * numbers, *next = managed + (i + 1) % layers * numbers;
    if (way == prefetched) CHECK(cudaMemPrefetchAsync(next, bytes, device, 0));  // one stream, so it is no faster here
    update<<<blocks, threads>>>(now, now + weights);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize()), see_peak();
    if (way == prefetched) CHECK(cudaMemPrefetchAsync(now, bytes, host, 0));
  }
  CHECK(cudaDeviceSynchronize());  // before the host reads
  std::memcpy(state, managed, layers * bytes);
  CHECK(cudaFree(managed));
}
int main() {
  int concurrent = 0;
  CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (!concurrent) return std::puts("this device cannot move single pages of managed memory"), 2;
  const char* names[] = {"every layer on the device", "streamed through two buffers", "managed, on demand",
                         "managed, prefetched", "managed, advised to stay"};
  std::vector<float> state(layers * numbers), expected;
  size_t peak[5];
  bool equal = true;
  std::printf("%d layers of %zu MiB, %d passes; peaks on the device:\n", layers, bytes >> 20, passes);
  for (const Way way : {on_device, streamed, on_demand, prefetched, advised}) {
    for (size_t i = 0; i < state.size(); ++i) state[i] = 0.001f * (i % 1000);
    free_before = free_bytes(), allocated = in_use = 0;
    (way <= streamed ? train : train_managed)(state.data(), way);
    if (way == on_device) expected = state;
    equal = equal && state == expected;
    peak[way] = allocated;
    std::printf("  %-28s cudaMalloc %2zu MiB, in use %2zu MiB\n", names[way], allocated >> 20, in_use >> 20);
  }
  std::printf("  state after %d passes: %s\n", passes, equal ? "bit-equal" : "different");
  if (!equal) return std::puts("FAIL: the ways differ"), 1;
  if (peak[streamed] != 2 * bytes) return std::puts("FAIL: the peak is not two layers"), 1;
  return std::puts("PASS"), 0;
}
