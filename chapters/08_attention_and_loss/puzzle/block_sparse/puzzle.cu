// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 08
//
// Attention with a block-sparse mask. Queries and keys are cut into blocks of 16; a byte for each pair of blocks says whether its queries look at
// its keys. A row is softmax(q k^T / sqrt(d)) v over the keys that it looks at, and zeros where it looks at none.
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

constexpr int block = 16, threads = 64;

// scores [n, n]: q k^T / sqrt(d), or -infinity
__global__ void scores_of(const float* q, const float* k, const unsigned char* mask, float* scores, int n, int d) {
  const int row = blockIdx.x;
  for (int j = threadIdx.x; j < n; j += blockDim.x) {
    float dot = 0;
    for (int c = 0; c < d; ++c) dot += q[row * d + c] * k[j * d + c];
    scores[size_t(row) * n + j] = mask[row / block * (n / block) + j / block] ? dot / sqrtf(float(d)) : -INFINITY;
  }
}
__global__ void attend(const float* scores, const float* v, float* out, int n, int d) {
  const int row = blockIdx.x;
  for (int c = threadIdx.x; c < d; c += blockDim.x) {
    float largest = -INFINITY;
    for (int j = 0; j < n; ++j) largest = fmaxf(largest, scores[size_t(row) * n + j]);
    float sum = 0, value = 0;
    for (int j = 0; j < n && largest > -INFINITY; ++j) {
      const float e = expf(scores[size_t(row) * n + j] - largest);
      sum += e;
      value += e * v[j * d + c];
    }
    out[row * d + c] = sum > 0 ? value / sum : 0;
  }
}

// q, k, v, out: [n, d] on the device; mask: [n / 16, n / 16] bytes. n is a multiple of 16 and may be tens of thousands, d is at most 64.
// TODO: this stores the score of every pair, n * n numbers, also of those that the mask leaves out. The budget has room for no further array in the
// device's memory, and keys and values that nobody looks at must not even be read. Yours are `out`, a thread's few numbers and a block's shared
// memory, in which a row of scores does not fit.
void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  float* scores = nullptr;
  CHECK(cudaMalloc(&scores, size_t(n) * n * sizeof(float)));
  scores_of<<<n, threads>>>(q, k, mask, scores, n, d);
  attend<<<n, threads>>>(scores, v, out, n, d);
  CHECK(cudaGetLastError());
  CHECK(cudaFree(scores));
}
// end of TODO
