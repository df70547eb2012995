// Blocks that write to one element. Check mode under ThreadSanitizer must report it. Many blocks: when two threads
// write in the very same moment, ThreadSanitizer may see neither.

#include "cuda/launch.h"

using namespace oomlab;

__global__ void last_wins(unsigned* y) { y[0] = blockIdx.x; }

int main() {
  unsigned* y = nullptr;
  CUDA_CHECK(cudaMalloc(&y, sizeof(unsigned)));
  launch(last_wins, {256, 1, 0}, nullptr, y);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaFree(y));
}
