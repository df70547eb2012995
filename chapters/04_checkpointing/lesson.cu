// nvcc -o lesson lesson.cu -lcublas
//
// Checkpointing. A layer computes h and a from its input x, and its backward pass needs all three again:
//     h = x W1      a = max(h, 0)^2      next x = x + a W2        (x: rows by width; h and a: rows by 4 width)
// The first layer's h and a are computed first and used last, so every layer's h and a wait in memory at the same time.
// Checkpointing keeps only each layer's x. It drops h and a, and computes them again just before that layer's backward
// pass. The same kernels on the same input give the same bits, so nothing but memory and time changes.
//
// The peak comes as the backward pass begins. With u = 4 bytes * rows * width = 256 KiB for an x, 4 u for an h or an a:
//     weights                          32 bytes * width * width * layers     1.00 MiB
//     x of every layer and the output  (layers + 1) u                        2.25 MiB
//     the gradient of one h            4 u                                   1.00 MiB
//     h and a                          8 u * layers or, checkpointed, 8 u   16.00 MiB or 2.00 MiB
//                                                          together         20.25 MiB or 6.25 MiB
// The price of a step: seven matrix products for a layer instead of six, since h is computed twice.
#include <cublas_v2.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int layers = 8, rows = 1024, width = 64, hidden = 4 * width, steps = 3, blocks = 32, threads = 256;
constexpr size_t x_count = size_t(rows) * width, h_count = size_t(rows) * hidden, w_count = size_t(width) * hidden;

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require(int(call) == 0, #call)  // cudaSuccess and CUBLAS_STATUS_SUCCESS are 0

__global__ void fill(float* p, size_t count, float scale) {  // pseudo-random numbers between -scale and scale
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const unsigned hash = unsigned(i + 1) * 2654435761u;
    p[i] = scale * ((hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f);
  }
}
__global__ void squared_relu(const float* h, float* a) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < h_count; i += gridDim.x * blockDim.x)
    a[i] = h[i] > 0 ? h[i] * h[i] : 0;
}
__global__ void squared_relu_backward(const float* h, float* d) {  // d: a's gradient becomes h's
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < h_count; i += gridDim.x * blockDim.x)
    d[i] *= h[i] > 0 ? 2 * h[i] : 0;
}

cublasHandle_t cublas;
cudaMemPool_t pool;  // the device's. It keeps the record: the most bytes that were in use
float* weights;
float* x[layers + 1];
float* h[layers];
float* a[layers];
bool saved[layers];  // whether this layer's h and a are in memory
int computed;        // how often an h and an a were

// In the stream's order: a kernel that was started before still has its memory, and what comes after may get it again.
float* allocate(size_t count) {
  float* p = nullptr;
  CHECK(cudaMallocAsync(&p, count * sizeof(float), 0));
  return p;
}
void release(float* p) { CHECK(cudaFreeAsync(p, 0)); }
float* w1(int l) { return weights + 2 * l * w_count; }
float* w2(int l) { return w1(l) + w_count; }

// C[m, n] = alpha op(A) op(B) + beta C, row by row; ta, tb: transpose. cuBLAS stores by columns: it computes C^T.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}

void forward(int l) {
  h[l] = allocate(h_count);
  a[l] = allocate(h_count);
  matmul(false, false, rows, hidden, width, 1, x[l], w1(l), 0, h[l]);
  squared_relu<<<blocks, threads>>>(h[l], a[l]);
  saved[l] = true;
  ++computed;
}
void drop(int l) {
  release(h[l]);
  release(a[l]);
  saved[l] = false;
}

void step(bool checkpoint, float rate) {
  for (int l = 0; l < layers; ++l) {
    forward(l);
    x[l + 1] = allocate(x_count);
    CHECK(cudaMemcpyAsync(x[l + 1], x[l], x_count * sizeof(float), cudaMemcpyDeviceToDevice, 0));
    matmul(false, false, rows, width, hidden, 1, a[l], w2(l), 1, x[l + 1]);  // x + a W2
    if (checkpoint) drop(l);  // THE MITIGATION
  }
  float* dx = x[layers];  // the loss is |output|^2 / 2, so the output is its own gradient
  for (int l = layers - 1; l >= 0; --l) {
    if (!saved[l]) forward(l);  // THE MITIGATION
    float* d = allocate(h_count);
    matmul(false, true, rows, hidden, width, 1, dx, w2(l), 0, d);         // d = dx W2^T, then an SGD step:
    matmul(true, false, hidden, width, rows, -rate, a[l], dx, 1, w2(l));  // W2 = W2 - rate a^T dx, no gradient stored
    squared_relu_backward<<<blocks, threads>>>(h[l], d);
    drop(l);
    matmul(false, true, rows, width, hidden, 1, d, w1(l), 1, dx);        // dx = dx + d W1^T
    matmul(true, false, width, hidden, rows, -rate, x[l], d, 1, w1(l));  // W1 = W1 - rate x^T d
    release(d);
    if (l > 0) release(x[l]);
  }
  release(dx);
  CHECK(cudaGetLastError());
}

struct Run {
  uint64_t peak = 0;  // bytes
  std::vector<float> weights = std::vector<float>(2 * layers * w_count);
};
Run train(const char* what, bool checkpoint) {
  Run run;
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &run.peak));  // starts the record anew
  computed = 0;
  weights = allocate(run.weights.size());
  x[0] = allocate(x_count);
  fill<<<blocks, threads>>>(weights, run.weights.size(), 0.05f);
  fill<<<blocks, threads>>>(x[0], x_count, 1.0f);
  for (int s = 0; s < steps; ++s) step(checkpoint, 1e-3f);
  CHECK(cudaMemcpy(run.weights.data(), weights, run.weights.size() * sizeof(float), cudaMemcpyDeviceToHost));
  release(weights);
  release(x[0]);
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &run.peak));
  std::printf("  %-34s peak %5.2f MiB, h and a computed %d times\n", what, run.peak / 1048576.0, computed);
  return run;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cublasCreate(&cublas));
  std::printf("%d layers of width %d, %d rows, FP32, %d steps\n", layers, width, rows, steps);
  Run kept;
  Run again;
  if (without) kept = train("keep every h and a", false);
  if (with) again = train("keep x only, compute h and a again", true);
  CHECK(cublasDestroy(cublas));
  if (with && without) {
    const bool equal = !std::memcmp(kept.weights.data(), again.weights.data(), kept.weights.size() * sizeof(float));
    std::printf("  weights after %d steps: %s\n", steps, equal ? "bit-equal" : "different");
    require(equal && kept.weights == again.weights, "the same weights");  // bits alone would take NaN for a number
    const size_t saved_bytes = (layers - 1) * 2 * h_count * sizeof(float);
    require(kept.peak - again.peak == saved_bytes, "one layer's h and a at a time");
  }
  std::puts("PASS");
}
