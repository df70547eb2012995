// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 07-shards
//
// SGD with momentum on several ranks, each with all weights and gradients of its own batch. Here they are on one device; the bytes are those of
// several.
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

// to += from * scale
__global__ void add(const float* from, float* to, int n, float scale) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] += from[i] * scale;
}
__global__ void scale(float* p, int n, float by) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] *= by;
}

// w, g: for each rank n weights, all ranks the same, and n gradients, every rank's others. In each of the steps the mean gradient is used:
//     momentum = beta * momentum + mean gradient            w = w - rate * momentum
// TODO: every rank has all of the momentum. The budget has room for one momentum altogether: n numbers, divided among the ranks, and no
// allocation may be larger than a rank's share.
void train(float* const* w, const float* const* g, int ranks, int n, int steps, float rate, float beta) {
  std::vector<float*> momentum(ranks);
  for (int r = 0; r < ranks; ++r) {
    CHECK(cudaMalloc(&momentum[r], n * sizeof(float)));
    CHECK(cudaMemset(momentum[r], 0, n * sizeof(float)));
  }
  for (int s = 0; s < steps; ++s)
    for (int r = 0; r < ranks; ++r) {
      scale<<<blocks, threads>>>(momentum[r], n, beta);
      for (int other = 0; other < ranks; ++other) add<<<blocks, threads>>>(g[other], momentum[r], n, 1.0f / ranks);
      add<<<blocks, threads>>>(momentum[r], w[r], n, -rate);
    }
  CHECK(cudaGetLastError());
  for (float* m : momentum) CHECK(cudaFree(m));
}
// end of TODO
