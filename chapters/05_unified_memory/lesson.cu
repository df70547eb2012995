// nvcc -o lesson lesson.cu
// CUDA 12.4 or newer. The managed rows need concurrentManagedAccess, which Windows and WSL2 do not have.
//
// More than the device has. A training step reads and writes all of a model's state, but one layer at a time. The other
// layers can wait in the host's memory, which is larger. There are two ways to do it.
//
// Streaming: two buffers on the device take turns, and each has a stream: a layer is copied in, updated, and copied out
// in this order. What is in different streams may run at the same time. So while a kernel works in one buffer, the
// other one's layer leaves and the next one comes. For that the host's side of a copy must be pinned.
//
// Managed (or unified) memory, from cudaMallocManaged(), has one address for both sides. Its pages move to the side
// that touches them (on demand), or earlier (prefetched), or stay on the host and are used from there (advised). On the
// device they use memory that no cudaMalloc() of ours counts: on demand, pages stay there until the device is full.
//
// The peak, with layers of 2 MiB: 8 * 2 MiB = 16 MiB with all on the device, or on demand (all of this fits, so none
// has to leave); 2 * 2 MiB = 4 MiB streamed or prefetched; nothing advised. (A GPU's driver takes memory for managed
// pages in large pieces, and keeps them: an H100 shows 128, 0 and 0 MiB. So what cudaMalloc() gave is judged, and where
// managed pages have been put.)
// The price, but on demand: each pass carries all 16 MiB over the bus and back. On the device they are copied once.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int layers = 8;
constexpr int passes = 3;                          // over all layers
constexpr int weights = 1 << 18;                   // of one layer
constexpr int numbers = 2 * weights;               // of one layer: its weights, then as many momenta
constexpr size_t bytes = numbers * sizeof(float);  // of one layer
constexpr int all_numbers = layers * numbers;
constexpr int blocks = 32;    // of each kernel
constexpr int threads = 256;  // of each block
static_assert(layers % 2 == 0, "the two streams take turns from pass to pass, too");

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t error, const char* call) { require(error == cudaSuccess, cudaGetErrorString(error), call); }
#define CHECK(call) check(call, #call)

// A layer's weights and their momentum, updated by SGD. The loss is |w - 1|^2 / 2.
__global__ void update(float* layer) {
  float* w = layer;
  float* momentum = layer + weights;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < weights; i += gridDim.x * blockDim.x) {
    momentum[i] = 0.9f * momentum[i] + (w[i] - 1);
    w[i] -= 0.1f * momentum[i];
  }
}

size_t allocated;    // bytes of the device, from cudaMalloc
size_t in_use;       // bytes of the device, by cudaMemGetInfo
size_t free_before;  // bytes of the device that were free when a run began
float* allocate(size_t size) {
  float* p = nullptr;
  CHECK(cudaMalloc(&p, size));
  allocated += size;  // nothing is freed before the end, so this is the peak
  return p;
}
size_t free_now() {
  size_t free_bytes = 0;
  size_t total = 0;
  CHECK(cudaMemGetInfo(&free_bytes, &total));
  return free_bytes;
}
void see_peak() { in_use = std::max(in_use, free_before - std::min(free_before, free_now())); }

void train_on_device(float* state) {
  float* all = allocate(layers * bytes);
  see_peak();
  CHECK(cudaMemcpy(all, state, layers * bytes, cudaMemcpyHostToDevice));
  for (int i = 0; i < passes * layers; ++i) {
    const int l = i % layers;
    update<<<blocks, threads>>>(all + l * numbers);
    CHECK(cudaGetLastError());
  }
  CHECK(cudaMemcpy(state, all, layers * bytes, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(all));
}

// Two streams for two buffers. (They are NonBlocking: they do not wait for the default stream.)
cudaStream_t streams[2];

void train_streamed(float* state) {
  int count = layers;
  count = 2;  // THE MITIGATION: two buffers take turns
  std::vector<float*> buffers(count);
  for (float*& buffer : buffers) buffer = allocate(bytes);
  see_peak();
  for (int i = 0; i < passes * layers; ++i) {
    const int l = i % layers;
    float* layer = state + l * numbers;
    float* buffer = buffers[l % count];  // one for each layer without the mitigation
    const cudaStream_t stream = streams[l % 2];  // the buffer's own: the layer before leaves first
    CHECK(cudaMemcpyAsync(buffer, layer, bytes, cudaMemcpyHostToDevice, stream));
    update<<<blocks, threads, 0, stream>>>(buffer);  // 0 bytes of shared memory, in this stream
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(layer, buffer, bytes, cudaMemcpyDeviceToHost, stream));
  }
  CHECK(cudaDeviceSynchronize());  // all layers are home
  for (float* buffer : buffers) CHECK(cudaFree(buffer));
}

enum Way { on_demand, prefetched, advised };
void train_managed(float* state, Way way) {
  const cudaMemLocation device = {cudaMemLocationTypeDevice, 0};
  const cudaMemLocation host = {cudaMemLocationTypeHost, 0};
  float* managed = nullptr;
  CHECK(cudaMallocManaged(&managed, layers * bytes));
  std::memcpy(managed, state, layers * bytes);
  if (way == advised) {
    CHECK(cudaMemAdvise(managed, layers * bytes, cudaMemAdviseSetPreferredLocation, host));
    CHECK(cudaMemAdvise(managed, layers * bytes, cudaMemAdviseSetAccessedBy, device));
  }
  for (int i = 0; i < passes * layers; ++i) {
    const int l = i % layers;
    const int next = (i + 1) % layers;  // comes beside this update, once layer l - 1 has left in its stream
    if (way == prefetched && i + 1 < passes * layers)
      CHECK(cudaMemPrefetchAsync(managed + next * numbers, bytes, device, 0, streams[next % 2]));
    update<<<blocks, threads, 0, streams[l % 2]>>>(managed + l * numbers);
    CHECK(cudaGetLastError());
    if (i >= (passes - 1) * layers) {  // the host only queues; in the last pass it waits, to ask
      CHECK(cudaDeviceSynchronize());
      see_peak();
    }
    if (way == prefetched) CHECK(cudaMemPrefetchAsync(managed + l * numbers, bytes, host, 0, streams[l % 2]));
  }
  CHECK(cudaDeviceSynchronize());  // before the host reads
  int place = cudaInvalidDeviceId;
  cudaMemRangeAttribute asked = cudaMemRangeAttributePreferredLocation;
  if (way == prefetched) asked = cudaMemRangeAttributeLastPrefetchLocation;
  CHECK(cudaMemRangeGetAttribute(&place, sizeof(place), asked, managed, layers * bytes));
  require((place == cudaCpuDeviceId) == (way != on_demand), "all layers went home, or were to stay there");
  std::memcpy(state, managed, layers * bytes);
  CHECK(cudaFree(managed));
}
void train_on_demand(float* state) { train_managed(state, on_demand); }
void train_prefetched(float* state) { train_managed(state, prefetched); }
void train_advised(float* state) { train_managed(state, advised); }

std::vector<float> expected;  // the state that the first way leaves
void run(const char* what, float* state, void (*train)(float*), int layers_allocated) {
  for (int i = 0; i < all_numbers; ++i) state[i] = 0.001f * (i % 1000);
  free_before = free_now();
  allocated = 0;
  in_use = 0;
  train(state);
  std::printf("  %-28s cudaMalloc %2zu MiB, in use %2zu MiB\n", what, allocated >> 20, in_use >> 20);
  if (expected.empty()) expected.assign(state, state + all_numbers);
  require(std::equal(expected.begin(), expected.end(), state), "the same state in every way");
  require(allocated == layers_allocated * bytes, "what cudaMalloc() gave, by the formula");
}
int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  int concurrent = 0;
  CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  float* state = nullptr;
  CHECK(cudaMallocHost(&state, layers * bytes));  // pinned
  for (cudaStream_t& stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::printf("%d layers of %zu MiB, %d passes; peaks on the device:\n", layers, bytes >> 20, passes);
  if (without) run("every layer on the device", state, train_on_device, layers);
  if (with) run("streamed through two buffers", state, train_streamed, 2);
  if (with && concurrent) {
    run("managed, on demand", state, train_on_demand, 0);
    run("managed, prefetched", state, train_prefetched, 0);
    run("managed, advised to the host", state, train_advised, 0);
  }
  if (with && !concurrent) std::puts("  managed: not here, this device cannot move single pages");
  if (with && without) std::printf("  state after %d passes: bit-equal\n", passes);
  for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFreeHost(state));
  std::puts("PASS");
}
