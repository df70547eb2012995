// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 14
//
// The backward pass of a layer with an adapter, y = x (W + s B A)^T: W [out, in] is frozen, A [rank, in] and B [out, rank] are trained. The optimizer
// wants the gradients of A and B, and the layer before wants that of x.
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

// A matrix, or with T() the same numbers as its transpose: element (i, j) is at[i * down + j * right].
struct Matrix {
  const float* at;
  int rows, columns, down, right;
};
Matrix M(const float* at, int rows, int columns) { return {at, rows, columns, columns, 1}; }
Matrix T(const Matrix& m) { return {m.at, m.columns, m.rows, m.right, m.down}; }

// c = keep c + scale a b
__global__ void product(Matrix a, Matrix b, float* c, float keep, float scale) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.rows * b.columns; i += gridDim.x * blockDim.x) {
    const int row = i / b.columns, column = i % b.columns;
    float sum = 0;
    for (int k = 0; k < a.columns; ++k) sum += a.at[row * a.down + k * a.right] * b.at[k * b.down + column * b.right];
    c[i] = (keep != 0 ? keep * c[i] : 0) + scale * sum;
  }
}

// All on the device: x and its gradient dx [batch, in], dy [batch, out], W [out, in], A and dA [rank, in], B and dB [out, rank].
// TODO: this makes the gradient of W, which nobody wants, and W + s B A, both as large as W. The budget has room for one array of [batch, rank].
void backward(const float* x, const float* dy, const float* W, const float* A, const float* B, float s, float* dA, float* dB, float* dx, int batch, int in,
              int out, int rank) {
  float *dW = nullptr, *whole = nullptr;
  CHECK(cudaMalloc(&dW, size_t(out) * in * sizeof(float)));
  product<<<blocks, threads>>>(T(M(dy, batch, out)), M(x, batch, in), dW, 0, 1);
  product<<<blocks, threads>>>(M(dW, out, in), T(M(A, rank, in)), dB, 0, s);
  product<<<blocks, threads>>>(T(M(B, out, rank)), M(dW, out, in), dA, 0, s);
  CHECK(cudaMalloc(&whole, size_t(out) * in * sizeof(float)));
  CHECK(cudaMemcpy(whole, W, size_t(out) * in * sizeof(float), cudaMemcpyDeviceToDevice));
  product<<<blocks, threads>>>(M(B, out, rank), M(A, rank, in), whole, 1, s);
  product<<<blocks, threads>>>(M(dy, batch, out), M(whole, out, in), dx, 0, 1);
  CHECK(cudaGetLastError());
  CHECK(cudaFree(whole));
  CHECK(cudaFree(dW));
}
// end of TODO
