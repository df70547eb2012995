// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 05
//
// Layers whose weights wait in host memory. Two buffers on the device take turns: while a layer computes from one of them, the next layer's
// weights are copied into the other. A stream for the copies, a stream for the kernels, and events say who waits for whom.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#define CHECK(call) check(call, #call)
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error));
}

constexpr int blocks = 8, threads = 256;

__global__ void layer(const float* w, float* x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = x[i] * w[i] + 1;
}

// weights: layers * n floats in pinned host memory. x: n floats on the device.
// TODO: a copy does not wait until the kernel before it has read the buffer. On some days the result is right. The budget has room for x and two
// buffers, and the host may wait twice.
void forward(const float* weights, float* x, int n, int layers) {
  const size_t bytes = n * sizeof(float);
  cudaStream_t copies, kernels;
  CHECK(cudaStreamCreate(&copies));
  CHECK(cudaStreamCreate(&kernels));
  float* buffer[2];
  cudaEvent_t copied[2];
  for (int b = 0; b < 2; ++b) {
    CHECK(cudaMalloc(&buffer[b], bytes));
    CHECK(cudaEventCreate(&copied[b]));
  }
  for (int l = 0; l < layers; ++l) {
    const int b = l % 2;
    CHECK(cudaMemcpyAsync(buffer[b], weights + size_t(l) * n, bytes, cudaMemcpyHostToDevice, copies));
    CHECK(cudaEventRecord(copied[b], copies));
    CHECK(cudaStreamWaitEvent(kernels, copied[b], 0));
    layer<<<blocks, threads, 0, kernels>>>(buffer[b], x, n);
    CHECK(cudaGetLastError());
  }
  CHECK(cudaStreamSynchronize(kernels));
  for (int b = 0; b < 2; ++b) {
    CHECK(cudaFree(buffer[b]));
    CHECK(cudaEventDestroy(copied[b]));
  }
  CHECK(cudaStreamDestroy(copies));
  CHECK(cudaStreamDestroy(kernels));
}
// end of TODO
