// nvcc -std=c++20 -o lesson lesson.cu -lnccl
//
// Several GPUs. Data parallel training gives each of N devices (ranks 0 to N - 1) its own samples and a copy of the
// model's state: weights, gradients, and AdamW's two moments, 16 bytes per parameter in FP32. An all-reduce sums the
// gradients, so that every device makes the same update from the same sum. There are N times the devices, and none of
// them holds a byte less of that state. (Activations go with each device's samples. This lesson has none.)
//
// Making the same update N times is a waste. Instead (ZeRO, stage 1), device r updates one slice of the weights:
//     reduce-scatter   device r gets the sum of its slice of the gradients
//     AdamW            updates that slice of the weights, so device r needs the moments of that slice only
//     all-gather       every device gets the updated slices of all the others
// An all-reduce in a ring (each device passes parts on to the next) is a reduce-scatter and an all-gather of the sums.
// Here the updated weights are gathered, not the sums, so no more bytes are sent than before.
//
// The peak per device, with P parameters: weights 4 P, gradients 4 P, moments 8 P bytes, together 16 P; with slices of
// the moments 8 P + 8 P / N. P = 262144, or 2^18: 4 MiB. With N = 4 devices 2.5 MiB, with N = 8 devices 2.25 MiB.
#include <nccl.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

constexpr int max_parameters = 1 << 18;  // rounded down to a multiple of the number of devices
constexpr int steps = 3;
constexpr int blocks = 32;    // of each kernel
constexpr int threads = 256;  // of each block

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::fflush(stdout);
  std::_Exit(1);  // ends all devices' threads, so that none waits for one that failed
}
void check(cudaError_t code, const char* call) { require(code == cudaSuccess, cudaGetErrorString(code), call); }
void check(ncclResult_t code, const char* call) { require(code == ncclSuccess, ncclGetLastError(nullptr), call); }
#define CHECK(call) check(call, #call)

// The loss is |w - sample|^2 / 2, with different (made-up) samples on each device and in each step.
__global__ void gradient(const float* w, float* g, int n, int rank, int step) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    g[i] = w[i] - (1 + 0.1f * ((i * 7 + rank * 5 + step * 3) % 11));
}
// AdamW, without bias correction. g is the sum over the devices; AdamW takes their mean.
__global__ void adamw(float* __restrict__ w, const float* __restrict__ g, float* __restrict__ m, float* __restrict__ v,
                      int n, int devices) {
  const float rate = 1e-2f;
  const float beta1 = 0.9f;
  const float beta2 = 0.999f;
  const float decay = 0.01f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float gradient = g[i] / devices;
    const float mean = beta1 * m[i] + (1 - beta1) * gradient;
    const float square = beta2 * v[i] + (1 - beta2) * gradient * gradient;
    m[i] = mean;
    v[i] = square;
    w[i] -= rate * (mean / (sqrtf(square) + 1e-8f) + decay * w[i]);
  }
}

struct Run {  // what one device did
  size_t bytes = 0;
  size_t moments = 0;
  std::vector<float> weights = {};
};
struct Device {
  int rank;
  int devices;
  ncclComm_t comm;
  cudaStream_t stream;
};
// cudaMalloc() and cudaFree() may wait for the kernels of all devices, and NCCL's kernels wait for each other. So none
// of NCCL's may run while a device allocates or frees: all threads meet before the first step and after the last.
Run train(const Device& device, bool sliced, std::barrier<>& barrier) {
  const int rank = device.rank;
  const int devices = device.devices;
  const cudaStream_t stream = device.stream;
  Run run;
  const auto allocate = [&run, stream](int count) {
    float* p = nullptr;
    CHECK(cudaMalloc(&p, count * sizeof(float)));
    CHECK(cudaMemsetAsync(p, 0, count * sizeof(float), stream));
    run.bytes += count * sizeof(float);  // nothing is freed, so this is the peak; NCCL's own buffers come on top
    return p;
  };
  const int parameters = max_parameters / devices * devices;  // all slices are equal
  float* w = allocate(parameters);
  float* g = allocate(parameters);
  int count = parameters;                    // how many of them this device updates
  if (sliced) count = parameters / devices;  // THE MITIGATION: one slice
  int first = 0;                             // where they begin
  if (count < parameters) first = rank * count;
  const size_t before = run.bytes;
  float* m = allocate(count);  // with v 8 bytes per parameter of the slice
  float* v = allocate(count);
  run.moments = run.bytes - before;
  barrier.arrive_and_wait();
  for (int step = 0; step < steps; ++step) {
    gradient<<<blocks, threads, 0, stream>>>(w, g, parameters, rank, step);
    CHECK(cudaGetLastError());
    if (count == parameters) {  // not sliced
      CHECK(ncclAllReduce(g, g, parameters, ncclFloat32, ncclSum, device.comm, stream));
      adamw<<<blocks, threads, 0, stream>>>(w, g, m, v, parameters, devices);
    } else {  // in place: each device has its slice where it stands in the whole; count is the length of a slice
      CHECK(ncclReduceScatter(g, g + first, count, ncclFloat32, ncclSum, device.comm, stream));
      adamw<<<blocks, threads, 0, stream>>>(w + first, g + first, m, v, count, devices);
      CHECK(ncclAllGather(w + first, w, count, ncclFloat32, device.comm, stream));
    }
    CHECK(cudaGetLastError());
  }
  CHECK(cudaStreamSynchronize(stream));
  barrier.arrive_and_wait();
  run.weights.resize(parameters);
  CHECK(cudaMemcpy(run.weights.data(), w, parameters * sizeof(float), cudaMemcpyDeviceToHost));
  for (float* p : {w, g, m, v}) CHECK(cudaFree(p));
  return run;
}
float difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float off = std::fabs(a[i] - b[i]);
    if (std::isnan(off)) return INFINITY;
    largest = std::max(largest, off);
  }
  return largest;
}
void print(const char* way, const Run& run) {
  std::printf("  %-39s peak %.2f MiB, moments %.2f MiB\n", way, run.bytes / 1048576.0, run.moments / 1048576.0);
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  if (devices < 2) {
    std::puts("this needs two devices");
    return 2;
  }
  std::vector<Run> whole(devices);   // what each device did
  std::vector<Run> sliced(devices);  // the same, with a slice of the moments
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  std::barrier barrier(devices);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < devices; ++rank) {
    ranks.emplace_back([&, rank] {  // a thread for each device
      Device device = {rank, devices, nullptr, nullptr};
      CHECK(cudaSetDevice(rank));
      CHECK(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
      CHECK(ncclCommInitRank(&device.comm, devices, id, rank));
      if (without) whole[rank] = train(device, false, barrier);
      if (with) sliced[rank] = train(device, true, barrier);
      CHECK(ncclCommDestroy(device.comm));
      CHECK(cudaStreamDestroy(device.stream));
    });
  }
  for (std::thread& thread : ranks) thread.join();
  const std::vector<float>& expected = without ? whole[0].weights : sliced[0].weights;
  float apart = 0;  // the largest difference of two weights that should be equal
  for (int rank = 0; rank < devices; ++rank) {
    if (without) apart = std::max(apart, difference(whole[rank].weights, expected));
    if (with) apart = std::max(apart, difference(sliced[rank].weights, expected));
  }
  std::printf("%d devices, %zu parameters, FP32, %d steps; on each device:\n", devices, expected.size(), steps);
  if (without) print("all-reduce, update everything", whole[0]);
  if (with) print("reduce-scatter, update 1/N, all-gather", sliced[0]);
  require(apart <= 1e-6, "equal weights on all devices");
  std::printf("  weights of all devices: %s\n", apart == 0 ? "bit-equal" : "equal to 1e-6");
  const size_t parameters = expected.size();
  if (without) require(whole[0].bytes == 16 * parameters, "16 bytes per parameter on each device");
  if (with) require(sliced[0].bytes == 8 * parameters + 8 * parameters / devices, "1/N of the moments on each device");
  std::puts("PASS");
}
