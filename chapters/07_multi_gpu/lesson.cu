// nvcc -o lesson lesson.cu -lnccl
//
// Several GPUs. Data parallel training gives each of N devices its own samples and a copy of everything else: weights,
// gradients, and AdamW's two moments, 16 bytes per parameter. An all-reduce sums the gradients, so that every device
// makes the same update from the same sum. There are N times the devices, and none of them holds a byte less.
//
// Making the same update N times is a waste. Instead (ZeRO, stage 1), device r updates one slice of the weights:
//     reduce-scatter   device r gets the sum of its slice of the gradients
//     AdamW            updates that slice of the weights, so device r needs the moments of that slice only
//     all-gather       every device gets the updated slices of all the others
// A ring all-reduce is a reduce-scatter and an all-gather, so no more bytes are sent than before.
//
// The peak per device, with P parameters: weights 4 P, gradients 4 P, moments 8 P, together 16 P; then 8 P + 8 P / N.
// P = 262144, or 2^18: 4 MiB. With N = 4 devices 2.5 MiB, with N = 8 devices 2.25 MiB.
#include <nccl.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

constexpr int most_parameters = 1 << 18, steps = 3, blocks = 32, threads = 256;

const char* text(cudaError_t error) { return cudaGetErrorString(error); }
const char* text(ncclResult_t result) { return ncclGetErrorString(result); }
void fail(const char* what, const char* why) {  // ends all devices' threads, so that none waits for one that failed
  std::printf("FAIL: %s: %s\n", what, why), std::fflush(stdout), std::_Exit(1);
}
#define CHECK(call) check(call, #call)
template <class Status>
void check(Status status, const char* call) {
  if (status != Status(0)) fail(call, text(status));
}

// Each block has one piece of the n numbers. The loss is |w - sample|^2 / 2, with other samples on each device.
__global__ void gradient(const float* w, float* g, size_t n, int rank, int step) {
  const size_t end = n * (blockIdx.x + 1) / gridDim.x;
  for (size_t i = n * blockIdx.x / gridDim.x + threadIdx.x; i < end; i += blockDim.x)
    g[i] = w[i] - (1 + 0.1f * ((i * 7 + rank * 5 + step * 3) % 11));
}
__global__ void adamw(float* w, const float* g, float* m, float* v, size_t n, int devices) {
  const float rate = 1e-2f, beta1 = 0.9f, beta2 = 0.999f, decay = 0.01f;
  const size_t end = n * (blockIdx.x + 1) / gridDim.x;
  for (size_t i = n * blockIdx.x / gridDim.x + threadIdx.x; i < end; i += blockDim.x) {
    const float mean = g[i] / devices;
    m[i] = beta1 * m[i] + (1 - beta1) * mean;
    v[i] = beta2 * v[i] + (1 - beta2) * mean * mean;
    w[i] -= rate * (m[i] / (sqrtf(v[i]) + 1e-8f) + decay * w[i]);
  }
}

struct Run {  // what one device did
  size_t bytes = 0, moments = 0;
  std::vector<float> weights = {};
};

Run train(int devices, int rank, bool sliced, ncclComm_t comm, cudaStream_t stream) {
  Run run;
  const auto allocate = [&](size_t count) {
    float* p = nullptr;
    CHECK(cudaMalloc(&p, count * sizeof(float)));
    CHECK(cudaMemsetAsync(p, 0, count * sizeof(float), stream));
    run.bytes += count * sizeof(float);  // nothing is freed before the end, so this is the peak
    return p;
  };
  const size_t parameters = most_parameters / devices * devices;
  float *w = allocate(parameters), *g = allocate(parameters);
  size_t first = 0, count = parameters;                            // the slice that this device updates: all
  if (sliced) count = parameters / devices, first = rank * count;  // THE MITIGATION
  const size_t before = run.bytes;
  float *m = allocate(count), *v = allocate(count);
  run.moments = run.bytes - before;
  const bool all = count == parameters;
  for (int step = 0; step < steps; ++step) {
    gradient<<<blocks, threads, 0, stream>>>(w, g, parameters, rank, step);
    if (all) CHECK(ncclAllReduce(g, g, count, ncclFloat32, ncclSum, comm, stream));
    if (!all) CHECK(ncclReduceScatter(g, g + first, count, ncclFloat32, ncclSum, comm, stream));  // THE MITIGATION
    adamw<<<blocks, threads, 0, stream>>>(w + first, g + first, m, v, count, devices);
    if (!all) CHECK(ncclAllGather(w + first, w, count, ncclFloat32, comm, stream));  // THE MITIGATION
    CHECK(cudaGetLastError());
  }
  CHECK(cudaStreamSynchronize(stream));
  run.weights.resize(parameters);
  CHECK(cudaMemcpy(run.weights.data(), w, parameters * sizeof(float), cudaMemcpyDeviceToHost));
  for (float* p : {w, g, m, v}) CHECK(cudaFree(p));
  return run;
}

void print(const char* way, const Run& run) {
  std::printf("  %-39s peak %.2f MiB, moments %.2f MiB\n", way, run.bytes / 1048576.0, run.moments / 1048576.0);
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) return std::puts("this needs two devices"), 2;
  std::vector<Run> runs(2 * devices);  // of each device: all-reduce; then of each device: reduce-scatter
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < devices; ++rank)
    ranks.emplace_back([&, rank] {  // a thread for each device
      ncclComm_t comm;
      cudaStream_t stream;
      CHECK(cudaSetDevice(rank));
      CHECK(cudaStreamCreate(&stream));
      CHECK(ncclCommInitRank(&comm, devices, id, rank));
      for (bool sliced : {false, true}) runs[rank + sliced * devices] = train(devices, rank, sliced, comm, stream);
      CHECK(ncclCommDestroy(comm));
      CHECK(cudaStreamDestroy(stream));
    });
  for (std::thread& rank : ranks) rank.join();
  const Run &reduced = runs[0], &scattered = runs[devices];
  bool close = true, equal = true;
  for (const Run& run : runs)
    for (size_t i = 0; i < run.weights.size(); ++i) {
      close = close && std::fabs(run.weights[i] - reduced.weights[i]) <= 1e-6;
      equal = equal && run.weights[i] == reduced.weights[i];
    }
  std::printf("%d devices, %zu parameters, FP32, %d steps; on each device:\n", devices, reduced.weights.size(), steps);
  print("all-reduce, update everything", reduced);
  print("reduce-scatter, update 1/N, all-gather", scattered);
  const char* verdict = equal ? "bit-equal" : close ? "equal but for the order of sums" : "different";
  std::printf("  weights of all devices: %s\n", verdict);
  if (!close) fail("expected", "equal weights on all devices");
  if (scattered.moments * devices != reduced.moments) fail("expected", "1/N of the moments on each device");
  return std::puts("PASS"), 0;
}
