// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 07-all_reduce
//
// An all-reduce by hand: every rank has an array, and afterwards every rank has the sum of all. Here the ranks' arrays are on one device, so a
// "send" is a copy; the bytes are those of several.
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

// to += from
__global__ void add(const float* from, float* to, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] += from[i];
}
void copy(float* to, const float* from, int n) { CHECK(cudaMemcpy(to, from, n * sizeof(float), cudaMemcpyDeviceToDevice)); }

// rank: `ranks` pointers to n floats each. The array of pointers is on the host.
// TODO: every rank gets a second array, as long as the first. The budget has room for the arrays, and for one piece of n / ranks elements.
void all_reduce(float* const* rank, int ranks, int n) {
  std::vector<float*> total(ranks);
  for (int r = 0; r < ranks; ++r) {
    CHECK(cudaMalloc(&total[r], n * sizeof(float)));
    copy(total[r], rank[0], n);
    for (int other = 1; other < ranks; ++other) add<<<blocks, threads>>>(rank[other], total[r], n);
  }
  for (int r = 0; r < ranks; ++r) {
    copy(rank[r], total[r], n);
    CHECK(cudaFree(total[r]));
  }
  CHECK(cudaGetLastError());
}
// end of TODO
