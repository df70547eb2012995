// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 13
//
// SGD with momentum, the momentum in 8 bits: codes from -127 to 127, and an FP32 scale for each group of 256, which is the largest of the group
// divided by 127. A step reads the codes as numbers, updates them, uses them, and writes them as codes again.
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

constexpr int group = 256, threads = 128;

// TODO: the rounding cuts off, so what is smaller than a step becomes 0 again and again, and the group's largest number is not known to all threads
// when they need it. Round to the nearest (rintf), and find the largest of the whole group. The budget has room for w, g, codes and scales. A block
// of any number of threads, of a warp at least, has a group; n need not be a multiple of 256.
__global__ void update(float* w, const float* g, signed char* codes, float* scales, int n, float rate, float beta) {
  __shared__ float m[group];
  const int first = blockIdx.x * group;
  const int count = n - first < group ? n - first : group;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    m[i] = beta * codes[first + i] * scales[blockIdx.x] + g[first + i];
    w[first + i] -= rate * m[i];
  }
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(m[i]));
  const float scale = largest > 0 ? largest / 127 : 1;
  for (int i = threadIdx.x; i < count; i += blockDim.x) codes[first + i] = (signed char)(m[i] / scale);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}
// end of TODO

// w, g: n floats; codes: n bytes; scales: a float for each group of 256, the last one may be shorter. All are on the device.
void step(float* w, const float* g, signed char* codes, float* scales, int n, float rate, float beta) {
  update<<<(n + group - 1) / group, threads>>>(w, g, codes, scales, n, rate, beta);
  CHECK(cudaGetLastError());
}
