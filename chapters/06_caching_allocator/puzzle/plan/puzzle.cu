// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 06-plan
//
// A planned step: it is known which tensors live when, so all of them get a fixed place in one block. Tensors that never live at the same time
// may have the same place. One allocation for the step, and no fragmentation: what remains is the size of the block.
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

struct Tensor {
  size_t bytes;
  int first;  // the first step in which it lives
  int last;   // and the last one
};

constexpr size_t step = 512;  // offsets are multiples of this
size_t rounded(size_t bytes) { return (bytes + step - 1) / step * step; }

// Writes each tensor's offset, and allocates the block for all of them.
// TODO: every tensor has a place of its own, so the block is the sum of all. The budget is what one gets by placing the largest first, each at
// the lowest offset where it meets no tensor that lives in one of its steps.
char* place(const Tensor* tensors, int count, size_t* offset) {
  size_t total = 0;
  for (int i = 0; i < count; ++i) {
    offset[i] = total;
    total += rounded(tensors[i].bytes);
  }
  char* block = nullptr;
  CHECK(cudaMalloc(&block, total));
  return block;
}
// end of TODO
