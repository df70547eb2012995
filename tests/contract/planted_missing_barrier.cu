// A kernel without the __syncthreads() that it needs. Check mode under ThreadSanitizer must report it; a GPU would
// compute a wrong sum, sometimes.

#include "cuda/launch.h"

using namespace oomlab;

__global__ void neighbours(float* y) {
  float* shared = dynamic_shared<float>();
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  // missing: __syncthreads();
  y[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

int main() {
  float* y = nullptr;
  CUDA_CHECK(cudaMalloc(&y, 32 * sizeof(float)));
  launch(neighbours, {1, 32, 32 * sizeof(float)}, nullptr, y);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaFree(y));
}
