// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 15
//
// A job on a card that somebody else uses, too. It squares n numbers that are on the host, chunk by chunk; a larger chunk is faster. The neighbour needs
// `reserve` bytes free at all times, and takes and gives back memory whenever it likes.
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
constexpr size_t smallest = 64 << 10;  // bytes: with this much the job can go on

__global__ void square(float* x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] *= x[i];
}

// TODO: this takes all that is free, and keeps it until the end. Before each chunk ask what is free, leave `reserve` bytes of that, and take at most the
// rest, in whole 64 KiB, and never less than 64 KiB. What was free a moment ago may be gone: where an allocation fails, try half. Give the chunk back
// before the next one. The judge allows 4 kernels for each 64 KiB.
void job(const float* in, float* out, int n, size_t reserve) {
  size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total));
  float* x = nullptr;
  CHECK(cudaMalloc(&x, free / 512 * 512));
  const int most = int(std::min(free / 512 * 512 / sizeof(float), size_t(n)));
  for (int first = 0; first < n; first += most) {
    const int count = std::min(most, n - first);
    CHECK(cudaMemcpy(x, in + first, count * sizeof(float), cudaMemcpyHostToDevice));
    square<<<blocks, threads>>>(x, count);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(out + first, x, count * sizeof(float), cudaMemcpyDeviceToHost));
  }
  CHECK(cudaFree(x));
  (void)reserve;
}
// end of TODO
