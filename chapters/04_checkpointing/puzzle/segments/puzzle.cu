// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 04
//
// A chain of layers, y = x + w / (1 + x * x) for each element. backward() gets the gradient of the loss with respect to the last output,
// and turns it into the one with respect to the input. Every layer needs its own input for that.
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

__global__ void forward_layer(float w, const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] + w / (1 + x[i] * x[i]);
}

// Reads a layer's input; turns the gradient of its output into that of its input.
__global__ void backward_layer(float w, const float* x, float* gradient, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float d = 1 + x[i] * x[i];
    gradient[i] *= 1 - 2 * w * x[i] / (d * d);
  }
}

// w: one weight for each layer, on the host. input, gradient: n floats each, on the device.
// TODO: this keeps every layer's input. The budget has room for about 2 sqrt(layers) arrays beside input and gradient, and the judge
// allows 4 kernels for each layer, forward and backward together.
void backward(const float* w, int layers, const float* input, float* gradient, int n) {
  const size_t bytes = n * sizeof(float);
  std::vector<float*> x(layers);
  for (int l = 1; l < layers; ++l) {
    CHECK(cudaMalloc(&x[l], bytes));
    forward_layer<<<blocks, threads>>>(w[l - 1], l > 1 ? x[l - 1] : input, x[l], n);
  }
  for (int l = layers - 1; l >= 0; --l) {
    backward_layer<<<blocks, threads>>>(w[l], l > 0 ? x[l] : input, gradient, n);
    if (l > 0) CHECK(cudaFree(x[l]));
  }
  CHECK(cudaGetLastError());
}
// end of TODO
