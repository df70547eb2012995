// A kernel that writes one element past the end of a block from a pool. AddressSanitizer must report it.

#include "cuda/launch.h"

using namespace oomlab;

__global__ void fill(float* y, std::size_t n) {
  for (std::size_t i : grid_range(n)) y[i] = 1;
}

int main() {
  float *y = nullptr, *neighbour = nullptr;
  CUDA_CHECK(cudaMallocAsync(&y, 100 * sizeof(float), nullptr));
  CUDA_CHECK(cudaMallocAsync(&neighbour, 100 * sizeof(float), nullptr));
  launch(fill, {1, 32, 0}, nullptr, y, std::size_t(101));
  CUDA_CHECK(cudaDeviceSynchronize());
}
