// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 01-chunks
//
// The loss of each row of a batch: h = x W, and then the sum of max(h, 0)^2 over the hidden units. No row needs another one.
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

constexpr int threads = 128;

// h [rows, hidden] = x [rows, width] W [width, hidden]; a block computes one row.
__global__ void hidden_layer(const float* x, const float* w, float* h, int width, int hidden) {
  const int row = blockIdx.x;
  for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
    float sum = 0;
    for (int k = 0; k < width; ++k) sum += x[row * width + k] * w[k * hidden + j];
    h[row * hidden + j] = sum;
  }
}
__global__ void sum_rows(const float* h, float* loss, int rows, int hidden) {
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int j = 0; j < hidden; ++j) sum += h[row * hidden + j] > 0 ? h[row * hidden + j] * h[row * hidden + j] : 0;
    loss[row] = sum;
  }
}

constexpr int chunk = 64;  // rows that the budget has room for

// x [rows, width], w [width, hidden] and loss [rows] are on the device.
// TODO: this computes h of all rows at a time. The budget has room for h of 64 rows, and the judge allows 2 kernels for each 32 rows.
void row_losses(const float* x, const float* w, int rows, int width, int hidden, float* loss) {
  float* h = nullptr;
  CHECK(cudaMalloc(&h, size_t(rows) * hidden * sizeof(float)));
  hidden_layer<<<rows, threads>>>(x, w, h, width, hidden);
  sum_rows<<<8, threads>>>(h, loss, rows, hidden);
  CHECK(cudaGetLastError());
  CHECK(cudaFree(h));
}
// end of TODO
