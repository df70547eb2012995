// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 03
//
// A step of mixed precision. The gradients are FP16, multiplied by the loss scale. Where one of them is not finite, the scale was too large: the
// step is left out, and the scale halved. After 4 steps in a row that were not left out it is doubled, up to 65536.
#include <cuda_runtime.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#define CHECK(call) check(call, #call)
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error));
}

constexpr int blocks = 8, threads = 256, grow_after = 4;
constexpr float largest_scale = 65536;

__global__ void look_for_overflow(const __half* g, int n, int* found) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float value = float(g[i]);
    if (!(fabsf(value) <= 65504.0f)) atomicAdd(found, 1);
  }
}
__global__ void update(const __half* g, float* w, int n, float rate) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) w[i] -= rate * float(g[i]);
}

// g: n scaled gradients, w: n FP32 weights, on the device. scale and good_steps (steps since the last change of the scale) are kept by the caller.
// TODO: the scale never comes back after it was halved, and in the end small gradients are lost. The budget has room for g, w, and one number.
void step(const __half* g, float* w, int n, float rate, float& scale, int& good_steps) {
  int* found = nullptr;
  CHECK(cudaMalloc(&found, sizeof(int)));
  CHECK(cudaMemset(found, 0, sizeof(int)));
  look_for_overflow<<<blocks, threads>>>(g, n, found);
  int overflows = 0;
  CHECK(cudaMemcpy(&overflows, found, sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(found));
  if (overflows) {
    scale /= 2;
    return;
  }
  update<<<blocks, threads>>>(g, w, n, rate / scale);
  CHECK(cudaGetLastError());
}
// end of TODO
