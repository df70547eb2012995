// nvcc -o lesson lesson.cu -lcublas
//
// The problem: the batch is right for the training, and too large for the device.
//
//   fixed     two layers of 256 x 256 weights, and their gradients      1 MiB
//   each row  4 x 256 floats: input, hidden, output, hidden's gradient  4 KiB, so 16 MiB for 4096 rows
//
// The idea: the gradient of a batch is the sum of its rows' gradients. So take a few rows at a time, which is few
// activations, and let each of these micro-batches add to the gradient that is there already. The matrix product that
// makes a weight's gradient does that by itself: it computes C = A B + beta C. With beta = 0 it overwrites, which does
// the work of zero_grad; with beta = 1 it adds. What must not change is the divisor of the mean: the rows of the whole
// batch that count (the others are padding), not those of the micro-batch.
// The price: each micro-batch reads all weights and writes all gradients again, and small products are less efficient.
#include <cublas_v2.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

constexpr int batch = 4096, micro_batches = 8, width = 256, blocks = 32, threads = 256;
constexpr size_t layer = size_t(width) * width;
static_assert(batch % micro_batches == 0 && batch % 64 == 0, "a batch of equal micro-batches; see counts()");

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require(int(call) == 0, #call)  // cudaSuccess and CUBLAS_STATUS_SUCCESS are 0

// Every array comes from the device's memory pool, which keeps the record: the most bytes that were in use.
cudaMemPool_t pool;
float* allocate(size_t count) {
  float* p;
  CHECK(cudaMallocAsync(&p, count * sizeof(float), 0));
  return p;
}
void free_all(std::initializer_list<float*> list) {
  for (float* p : list) CHECK(cudaFreeAsync(p, 0));
}

// A row is a token; those that are padding do not count. In the batch's first eighth 1 row of 8 counts, in its second
// 2 of 8, and so on. In the last all of them do.
__host__ __device__ bool counts(int row) { return row % 8 <= row / (batch / 8); }
int rows_that_count(int first, int rows) {
  int sum = 0;
  for (int row = first; row < first + rows; ++row) sum += counts(row);
  return sum;
}

__global__ void fill(float* p, size_t first, size_t n, float scale) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    p[i] = scale * (int((first + i) * 7919 % 1021) - 510);
}
__global__ void relu(float* p, const float* y, size_t n) {  // forward: p is y; backward: p is y's gradient
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    if (!(y[i] > 0)) p[i] = 0;
}
__global__ void loss_gradient(float* y, int first, size_t n, float divisor) {  // of |y|^2 / 2, over divisor
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = counts(first + int(i / width)) ? y[i] / divisor : 0;
}

cublasHandle_t cublas;
// c = a b + beta c. cuBLAS stores by columns: for it our [rows x width] arrays are width x rows.
void gemm(cublasOperation_t op_a, cublasOperation_t op_b, int columns, int k, const float* a, const float* b,
          float beta, float* c) {
  const float one = 1;
  CHECK(cublasSgemm(cublas, op_a, op_b, width, columns, k, &one, a, width, b, width, &beta, c, width));
}

struct Result {
  std::vector<float> gradient;
  uint64_t peak = 0;
  double difference = 0;  // from another gradient, relative
};
// The gradient of the whole batch, `rows` at a time.
Result run(const char* what, int rows, bool own_divisor, const Result* whole = nullptr) {
  uint64_t peak = 0;
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &peak));  // starts the record anew
  float* w1 = allocate(2 * layer);
  float* w2 = w1 + layer;
  float* g1 = allocate(2 * layer);
  float* g2 = g1 + layer;
  fill<<<blocks, threads>>>(w1, 0, 2 * layer, 2e-4f);
  const size_t n = size_t(rows) * width;
  for (int first = 0; first < batch; first += rows) {
    float divisor = float(rows_that_count(0, batch));
    if (own_divisor) divisor = float(rows_that_count(first, rows)) * batch / rows;  // a mean of means, WRONG
    float beta = 0;           // the first micro-batch overwrites
    if (first > 0) beta = 1;  // THE MITIGATION: the others add to the gradient
    float* x = allocate(n);
    float* h = allocate(n);
    float* y = allocate(n);
    float* dh = allocate(n);
    fill<<<blocks, threads>>>(x, first * width, n, 1e-3f);
    gemm(CUBLAS_OP_N, CUBLAS_OP_N, rows, width, w1, x, 0, h);
    relu<<<blocks, threads>>>(h, h, n);
    gemm(CUBLAS_OP_N, CUBLAS_OP_N, rows, width, w2, h, 0, y);
    loss_gradient<<<blocks, threads>>>(y, first, n, divisor);
    gemm(CUBLAS_OP_N, CUBLAS_OP_T, width, rows, y, h, beta, g2);  // y is the output's gradient by now
    gemm(CUBLAS_OP_T, CUBLAS_OP_N, rows, width, w2, y, 0, dh);
    relu<<<blocks, threads>>>(dh, h, n);
    gemm(CUBLAS_OP_N, CUBLAS_OP_T, width, rows, dh, x, beta, g1);
    free_all({x, h, y, dh});  // after the kernels above, in the stream's order; the next micro-batch gets these bytes
  }
  CHECK(cudaPeekAtLastError());
  Result result{std::vector<float>(2 * layer), 0};
  CHECK(cudaMemcpy(result.gradient.data(), g1, 2 * layer * sizeof(float), cudaMemcpyDeviceToHost));
  free_all({w1, g1});
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &result.peak));
  std::printf("  %4d rows at a time, %-21s peak %4.1f MiB", rows, what, double(result.peak) / (1 << 20));
  if (whole) {
    double square = 0;
    double norm = 0;
    for (size_t i = 0; i < 2 * layer; ++i) {
      square += std::pow(result.gradient[i] - whole->gradient[i], 2);
      norm += std::pow(whole->gradient[i], 2);
    }
    result.difference = std::sqrt(square / norm);
    std::printf("  gradient off by %.0e", result.difference);
  }
  std::printf("\n");
  return result;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cublasCreate(&cublas));
  std::printf("a batch of %d rows, two layers of %d x %d floats\n", batch, width, width);
  Result whole;
  Result micro;
  Result means;
  int rows = batch;
  if (without) whole = run("the whole batch", rows, false);
  const Result* reference = without ? &whole : nullptr;
  rows = batch / micro_batches;  // THE MITIGATION: few rows at a time, so few activations
  if (with) micro = run("one divisor for all", rows, false, reference);
  if (with) means = run("each its own divisor", rows, true, reference);
  CHECK(cublasDestroy(cublas));
  if (with && without) {
    const size_t saved = 4 * sizeof(float) * width * (batch - batch / micro_batches);
    const size_t rounding = 1 << 16;  // of the pool
    require(micro.peak + saved <= whole.peak + rounding, "only one micro-batch's activations at a time");
    require(micro.difference < 1e-5, "the same gradient, up to the order of additions");
    require(means.difference > 1e-3, "a mean of means is another gradient");
  }
  std::puts("PASS");
}
