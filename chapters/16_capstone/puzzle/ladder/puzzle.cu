// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 16
//
// A ladder to a budget. There are some levers: a smaller micro-batch, checkpointing, 16 bits and so on. Each saves memory and costs time, and what one
// saves depends on the others. A set of levers is a number, bit i for lever i. step(set) tries a step: cudaSuccess, or cudaErrorMemoryAllocation.
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

using Step = cudaError_t (*)(unsigned set);
using Time = double (*)(unsigned set);  // seconds of a step with these levers, known without a try

// Whether a step with these levers fits. What is neither yes nor no is an error.
bool fits(Step step, unsigned set) {
  const cudaError_t error = step(set);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return false;
  }
  CHECK(error);
  return true;
}

// The set with which a step fits and takes the least time. ~0u where no set fits.
// TODO: this switches one lever on after the other until the step fits, so it may end with levers that are not needed, or with the dear ones. Find the
// fastest set that fits. A try costs a step: try no set after one is known that fits and is as fast, and none twice.
unsigned ladder(int levers, Time time, Step step) {
  unsigned set = 0;
  for (int lever = 0; !fits(step, set); ++lever) {
    if (lever == levers) return ~0u;
    set |= 1u << lever;
  }
  (void)time;
  return set;
}
// end of TODO
