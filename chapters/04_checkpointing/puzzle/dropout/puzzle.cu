// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 04-dropout
//
// Dropout in a chain of layers, and its gradient with recomputation. A layer is y = 4 x / (1 + x * x) for the elements that it keeps, and 0
// for the others. Which it keeps, a random number of its own decides: drawn anew for each layer of each step.
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

// The generator: number `drawn` of the sequence that `seed` begins.
unsigned draw(unsigned seed, unsigned& drawn) { return seed + 2654435769u * ++drawn; }

__device__ bool keeps(unsigned number, int i) {
  unsigned hash = number ^ (unsigned(i) * 2246822519u);
  hash = (hash ^ (hash >> 15)) * 2654435761u;
  return (hash >> 13) % 4 != 0;
}
__global__ void forward_layer(unsigned number, const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = keeps(number, i) ? 4 * x[i] / (1 + x[i] * x[i]) : 0;
}
__global__ void backward_layer(unsigned number, const float* x, float* gradient, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float d = 1 + x[i] * x[i];
    gradient[i] *= keeps(number, i) ? 4 * (1 - x[i] * x[i]) / (d * d) : 0;
  }
}

// input, output, gradient: n floats each, on the device. gradient comes in as the output's and leaves as the input's. `drawn` belongs to the
// whole training: a step of `layers` layers draws `layers` numbers, and the next step goes on after them.
// TODO: the inputs are computed again with other random numbers, so the gradient is another network's. The budget has room for one more array.
void step(const float* input, float* output, float* gradient, int n, int layers, unsigned seed, unsigned& drawn) {
  for (int l = 0; l < layers; ++l) forward_layer<<<blocks, threads>>>(draw(seed, drawn), l > 0 ? output : input, output, n);
  float* x = nullptr;
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  for (int l = layers - 1; l >= 0; --l) {
    for (int k = 0; k < l; ++k) forward_layer<<<blocks, threads>>>(draw(seed, drawn), k > 0 ? x : input, x, n);
    backward_layer<<<blocks, threads>>>(draw(seed, drawn), l > 0 ? x : input, gradient, n);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(x));
}
// end of TODO
