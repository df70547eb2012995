// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 00
//
// One step of AdamW, written as on a whiteboard: each line of the formula is an array. The two moments are given, and stay from step to step.
//     m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g g
//     m' = m / (1 - b1^t)            v' = v / (1 - b2^t)
//     w = w - rate (m' / (sqrt(v') + eps) + decay w)
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
constexpr float b1 = 0.9f, b2 = 0.999f, eps = 1e-8f;

__global__ void moments(const float* g, float* m, float* v, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    m[i] = b1 * m[i] + (1 - b1) * g[i];
    v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
  }
}
__global__ void divide(const float* from, float by, float* to, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = from[i] / by;
}
__global__ void apply(const float* m, const float* v, float* w, int n, float rate, float decay) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    w[i] -= rate * (m[i] / (sqrtf(v[i]) + eps) + decay * w[i]);
}

// w, g, m, v: n floats each, on the device. t: the number of the step, from 1.
// TODO: the corrected moments are arrays of their own, 8 bytes per parameter more. The budget has room for w, g, m and v: 16.
void adamw(float* w, const float* g, float* m, float* v, int n, int t, float rate, float decay) {
  float* corrected_m = nullptr;
  float* corrected_v = nullptr;
  CHECK(cudaMalloc(&corrected_m, n * sizeof(float)));
  CHECK(cudaMalloc(&corrected_v, n * sizeof(float)));
  moments<<<blocks, threads>>>(g, m, v, n);
  divide<<<blocks, threads>>>(m, 1 - std::pow(b1, t), corrected_m, n);
  divide<<<blocks, threads>>>(v, 1 - std::pow(b2, t), corrected_v, n);
  apply<<<blocks, threads>>>(corrected_m, corrected_v, w, n, rate, decay);
  CHECK(cudaGetLastError());
  CHECK(cudaFree(corrected_m));
  CHECK(cudaFree(corrected_v));
}
// end of TODO
