// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 01-finder
//
// A batch finder: the largest batch whose step still fits. It knows nothing of the step but how to try it: step(batch) allocates what a
// batch needs, frees it again, and returns cudaSuccess, or cudaErrorMemoryAllocation where it did not fit. A larger batch never needs less.
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

using Step = cudaError_t (*)(int batch);

// Whether a step with this batch fits. What is neither yes nor no is an error.
bool fits(Step step, int batch) {
  const cudaError_t error = step(batch);
  if (error == cudaErrorMemoryAllocation) {
    CHECK(cudaDeviceSynchronize());
    cudaGetLastError();  // the runtime remembers the error until somebody asks
    return false;
  }
  CHECK(error);
  return true;
}

// The largest batch from 1 to `most` that fits; 0 where not even 1 does.
// TODO: this doubles, and stops at a power of two: it skips all sizes between. Find the largest, with at most 2 log2(most) + 3 tries.
int largest_batch(int most, Step step) {
  int batch = 1;
  if (!fits(step, batch)) return 0;
  while (batch * 2 <= most && fits(step, batch * 2)) batch *= 2;
  return batch;
}
// end of TODO
