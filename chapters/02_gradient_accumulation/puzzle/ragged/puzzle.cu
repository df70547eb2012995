// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 02
//
// The gradient of a linear regression's loss, mean over all samples of (x w - y)^2, accumulated over micro-batches:
//     gradient = 2 / samples * sum over samples of (x w - y) x
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

constexpr int blocks = 8, threads = 128;

// r [rows] = x [rows, width] w - y
__global__ void residuals(const float* x, const float* y, const float* w, float* r, int rows, int width) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += gridDim.x * blockDim.x) {
    float sum = -y[i];
    for (int k = 0; k < width; ++k) sum += x[i * width + k] * w[k];
    r[i] = sum;
  }
}
// gradient [width] += scale * r x
__global__ void add_gradient(const float* x, const float* r, float* gradient, int rows, int width, float scale) {
  for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < width; k += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int i = 0; i < rows; ++i) sum += r[i] * x[i * width + k];
    gradient[k] += scale * sum;
  }
}

// x [samples, width], y [samples], w [width] and gradient [width] are on the device. A micro-batch has `micro` samples, the last one what is left.
// TODO: the gradient is wrong where the last micro-batch is shorter. The budget has room for one micro-batch's residuals.
void accumulate(const float* x, const float* y, const float* w, int samples, int width, int micro, float* gradient) {
  const int steps = (samples + micro - 1) / micro;
  float* r = nullptr;
  CHECK(cudaMalloc(&r, micro * sizeof(float)));
  CHECK(cudaMemset(gradient, 0, width * sizeof(float)));
  for (int first = 0; first < samples; first += micro) {
    const int rows = std::min(micro, samples - first);
    residuals<<<blocks, threads>>>(x + first * width, y + first, w, r, rows, width);
    add_gradient<<<blocks, threads>>>(x + first * width, r, gradient, rows, width, 2.0f / rows / steps);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(r));
}
// end of TODO
