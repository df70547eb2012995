// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 17
//
// The backward pass of an MLP, y = max(x W1, 0) W2, for every token of a long sequence: x [tokens, width], W1 [width, hidden], W2 [hidden, width]. Of the
// forward pass nothing was kept but x.
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

constexpr int blocks = 16, threads = 128;
constexpr int tile = 16;  // tokens

// A matrix, or with T() the same numbers as its transpose: element (i, j) is at[i * down + j * right].
struct Matrix {
  const float* at;
  int rows, columns, down, right;
};
Matrix M(const float* at, int rows, int columns) { return {at, rows, columns, columns, 1}; }
Matrix T(const Matrix& m) { return {m.at, m.columns, m.rows, m.right, m.down}; }

// c = keep c + a b
__global__ void product(Matrix a, Matrix b, float* c, float keep) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.rows * b.columns; i += gridDim.x * blockDim.x) {
    const int row = i / b.columns, column = i % b.columns;
    float sum = 0;
    for (int k = 0; k < a.columns; ++k) sum += a.at[row * a.down + k * a.right] * b.at[k * b.down + column * b.right];
    c[i] = (keep != 0 ? keep * c[i] : 0) + sum;
  }
}
__global__ void relu(float* h, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) h[i] = fmaxf(h[i], 0);
}
__global__ void relu_backward(const float* h, float* dh, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    if (h[i] <= 0) dh[i] = 0;
}

// All on the device: x, dy and dx [tokens, width], W1 and dW1 [width, hidden], W2 and dW2 [hidden, width].
// TODO: this makes what is between the two products, and its gradient, for all tokens at once. The budget has room for two arrays of [tile, hidden].
void backward(const float* x, const float* dy, const float* W1, const float* W2, float* dx, float* dW1, float* dW2, int tokens, int width, int hidden) {
  float *h = nullptr, *dh = nullptr;
  CHECK(cudaMalloc(&h, size_t(tokens) * hidden * sizeof(float)));
  CHECK(cudaMalloc(&dh, size_t(tokens) * hidden * sizeof(float)));
  product<<<blocks, threads>>>(M(x, tokens, width), M(W1, width, hidden), h, 0);
  relu<<<blocks, threads>>>(h, tokens * hidden);
  product<<<blocks, threads>>>(T(M(h, tokens, hidden)), M(dy, tokens, width), dW2, 0);
  product<<<blocks, threads>>>(M(dy, tokens, width), T(M(W2, hidden, width)), dh, 0);
  relu_backward<<<blocks, threads>>>(h, dh, tokens * hidden);
  product<<<blocks, threads>>>(T(M(x, tokens, width)), M(dh, tokens, hidden), dW1, 0);
  product<<<blocks, threads>>>(M(dh, tokens, hidden), T(M(W1, width, hidden)), dx, 0);
  CHECK(cudaGetLastError());
  CHECK(cudaFree(h));
  CHECK(cudaFree(dh));
}
// end of TODO
