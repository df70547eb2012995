// nvcc -o lesson lesson.cu
// CUDA 12.4 or newer, and a GPU with concurrentManagedAccess, or it ends with exit code 2.
// More than the device has. A training step reads and writes all of a model's state, but one layer at a time. The other
// layers can wait in the host's memory, which is larger. There are two ways to do it.
//
// Streaming: two buffers on the device take turns. While a layer is updated in one, the last one leaves the other, and
// the next one comes. A copy runs beside a kernel only in another stream and if its host side is pinned. So there are
// three streams, for the copies in, the kernels, and the copies out, and events say what each waits for.
//
// Managed (or unified) memory, from cudaMallocManaged(), has one address for both sides. Its pages move to the side
// that touches them (on demand), or earlier (prefetched), or stay on the host and are used from there (advised). On the
// device they use memory that no cudaMalloc() of ours counts: on demand, pages stay there until the device is full.
//
// The peak, with layers of 2 MiB: 8 * 2 MiB = 16 MiB with all on the device, or on demand (all of this fits, so none
// has to leave); 2 * 2 MiB = 4 MiB streamed or prefetched; nothing advised.
// The price: each pass carries all 16 MiB over the bus and back. On the device they are copied once, before training.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr size_t weights = 1 << 18, numbers = 2 * weights, bytes = numbers * sizeof(float);  // of one layer
constexpr int layers = 8, passes = 3, blocks = 32, threads = 256;

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require((call) == cudaSuccess, #call)

// A layer's weights and their momentum, updated by SGD. The loss is |w - 1|^2 / 2.
__global__ void update(float* layer) {
  float* w = layer;
  float* momentum = layer + weights;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < weights; i += gridDim.x * blockDim.x) {
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
size_t free_bytes() {
  size_t unused = 0;
  size_t total = 0;
  CHECK(cudaMemGetInfo(&unused, &total));
  return unused;
}
void see_peak() { in_use = std::max(in_use, free_before - std::min(free_before, free_bytes())); }

void train_on_device(float* state) {
  float* all = allocate(layers * bytes);
  CHECK(cudaMemcpy(all, state, layers * bytes, cudaMemcpyHostToDevice));
  for (int i = 0; i < passes * layers; ++i) update<<<blocks, threads>>>(all + i % layers * numbers);
  CHECK(cudaGetLastError());
  see_peak();
  CHECK(cudaMemcpy(state, all, layers * bytes, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(all));
}
struct Buffer {
  float* device;
  cudaEvent_t loaded;   // its layer is on the device
  cudaEvent_t updated;  // a kernel has updated it
  cudaEvent_t home;     // it is in the host's memory again
};
void train_streamed(float* state) {
  cudaStream_t in;
  cudaStream_t compute;
  cudaStream_t out;
  for (cudaStream_t* stream : {&in, &compute, &out}) CHECK(cudaStreamCreate(stream));
  std::vector<Buffer> buffers(layers);
  buffers.resize(2);  // THE MITIGATION: two of them take turns
  for (Buffer& b : buffers) {
    b.device = allocate(bytes);
    for (cudaEvent_t* event : {&b.loaded, &b.updated, &b.home}) CHECK(cudaEventCreate(event));
  }
  for (int i = 0; i < passes * layers; ++i) {
    float* layer = state + i % layers * numbers;
    const Buffer& b = buffers[i % buffers.size()];
    CHECK(cudaStreamWaitEvent(in, b.home));  // THE MITIGATION: the buffer's last layer must have left it
    CHECK(cudaMemcpyAsync(b.device, layer, bytes, cudaMemcpyHostToDevice, in));
    CHECK(cudaEventRecord(b.loaded, in));
    CHECK(cudaStreamWaitEvent(compute, b.loaded));
    update<<<blocks, threads, 0, compute>>>(b.device);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(b.updated, compute));
    CHECK(cudaStreamWaitEvent(out, b.updated));
    CHECK(cudaMemcpyAsync(layer, b.device, bytes, cudaMemcpyDeviceToHost, out));
    CHECK(cudaEventRecord(b.home, out));
    see_peak();
  }
  CHECK(cudaDeviceSynchronize());  // all layers are home
  for (cudaStream_t stream : {in, compute, out}) CHECK(cudaStreamDestroy(stream));
  for (const Buffer& b : buffers) {
    CHECK(cudaFree(b.device));
    for (cudaEvent_t event : {b.loaded, b.updated, b.home}) CHECK(cudaEventDestroy(event));
  }
}

enum Way { on_demand, prefetched, advised };
template <Way way>
void train_managed(float* state) {
  const cudaMemLocation device = {cudaMemLocationTypeDevice, 0};
  const cudaMemLocation host = {cudaMemLocationTypeHost, 0};
  float* managed = nullptr;
  CHECK(cudaMallocManaged(&managed, layers * bytes));
  std::memcpy(managed, state, layers * bytes);
  if (way == advised) {
    CHECK(cudaMemAdvise(managed, layers * bytes, cudaMemAdviseSetPreferredLocation, host));
    CHECK(cudaMemAdvise(managed, layers * bytes, cudaMemAdviseSetAccessedBy, device));
  }
  cudaStream_t compute;
  cudaStream_t copy;
  cudaEvent_t updated;
  cudaEvent_t arrived;
  for (cudaStream_t* stream : {&compute, &copy}) CHECK(cudaStreamCreate(stream));
  for (cudaEvent_t* event : {&updated, &arrived}) CHECK(cudaEventCreate(event));
  for (int i = 0; i < passes * layers; ++i) {
    const auto layer = [&](int at) { return managed + at % layers * numbers; };
    CHECK(cudaStreamWaitEvent(compute, arrived));
    update<<<blocks, threads, 0, compute>>>(layer(i));
    CHECK(cudaGetLastError());
    if (way == prefetched) {  // beside the kernel: the last layer goes, the next one comes
      CHECK(cudaStreamWaitEvent(copy, updated));
      if (i > 0) CHECK(cudaMemPrefetchAsync(layer(i - 1), bytes, host, 0, copy));
      CHECK(cudaMemPrefetchAsync(layer(i + 1), bytes, device, 0, copy));
      CHECK(cudaEventRecord(arrived, copy));
    }
    CHECK(cudaEventRecord(updated, compute));
    CHECK(cudaEventSynchronize(updated));
    see_peak();
  }
  CHECK(cudaDeviceSynchronize());  // before the host reads
  std::memcpy(state, managed, layers * bytes);
  for (cudaEvent_t event : {updated, arrived}) CHECK(cudaEventDestroy(event));
  for (cudaStream_t stream : {compute, copy}) CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(managed));
}

std::vector<float> expected;  // the state that the first way leaves
void run(const char* what, float* state, void (*train)(float*)) {
  for (size_t i = 0; i < layers * numbers; ++i) state[i] = 0.001f * (i % 1000);
  free_before = free_bytes();
  allocated = 0;
  in_use = 0;
  train(state);
  std::printf("  %-28s cudaMalloc %2zu MiB, in use %2zu MiB\n", what, allocated >> 20, in_use >> 20);
  if (expected.empty()) expected.assign(state, state + layers * numbers);
  require(std::equal(expected.begin(), expected.end(), state), "the same state in every way");
}
int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  int concurrent = 0;
  CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (!concurrent) {
    std::puts("this device cannot move single pages of managed memory");
    return 2;
  }
  float* state = nullptr;
  CHECK(cudaMallocHost(&state, layers * bytes));  // pinned
  std::printf("%d layers of %zu MiB, %d passes; peaks on the device:\n", layers, bytes >> 20, passes);
  if (without) run("every layer on the device", state, train_on_device);
  if (with) {
    run("streamed through two buffers", state, train_streamed);
    require(allocated == 2 * bytes, "a peak of two layers");
    run("managed, on demand", state, train_managed<on_demand>);
    run("managed, prefetched", state, train_managed<prefetched>);
    run("managed, advised to stay", state, train_managed<advised>);
  }
  if (with && without) std::printf("  state after %d passes: bit-equal\n", passes);
  CHECK(cudaFreeHost(state));
  std::puts("PASS");
}
