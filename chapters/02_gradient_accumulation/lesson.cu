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
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

constexpr int batch = 4096;                   // rows
constexpr int micro_batches = 8;              // that a batch is split into
constexpr int width = 256;                    // numbers of a row, in and out of both layers
constexpr int layer_weights = width * width;
constexpr size_t rounding = size_t(1) << 16;  // bytes by which the pool may count more than was asked for
constexpr int blocks = 32;                    // of each kernel
constexpr int threads = 256;                  // of each block
static_assert(batch % micro_batches == 0 && batch % 64 == 0, "a batch of equal micro-batches; see counts()");

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)  // 0 is cudaSuccess, and CUBLAS_STATUS_SUCCESS

// Every array of a run comes from a pool of its own, which keeps the record: the most bytes that were in use. Memory is
// taken and freed in the order of the stream (0, the default one): a kernel that was launched before still has it.
cudaMemPool_t pool;
void make_pool() {
  cudaMemPoolProps properties = {};  // location.id is 0: the first device
  properties.allocType = cudaMemAllocationTypePinned;  // it stays where it is made: on the device, by the next line
  properties.location.type = cudaMemLocationTypeDevice;
  CHECK(cudaMemPoolCreate(&pool, &properties));
}
float* allocate(size_t count) {
  void* p;
  CHECK(cudaMallocFromPoolAsync(&p, count * sizeof(float), pool, 0));
  return static_cast<float*>(p);
}
void free_all(std::initializer_list<float*> list) {
  for (float* p : list) CHECK(cudaFreeAsync(p, 0));
}

// A row is a token; those that are padding do not count. In the batch's first eighth 1 row of 8 counts, in its second
// 2 of 8, and so on. In the last all of them do. (A function for the host and for kernels.)
__host__ __device__ bool counts(int row) { return row % 8 <= row / (batch / 8); }
int rows_that_count(int first, int rows) {
  int sum = 0;
  for (int row = first; row < first + rows; ++row) sum += counts(row);
  return sum;
}

// p[0] is number `first` of pseudo-random ones between -scale and scale.
__global__ void fill(float* p, int first, int n, float scale) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const unsigned hash = unsigned(first + i + 1) * 2654435761u;
    p[i] = scale * ((hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f);
  }
}
__global__ void relu(float* p, const float* y, int n) {  // forward: p is y; backward: p is y's gradient
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    if (y[i] <= 0) p[i] = 0;
}
__global__ void loss_gradient(float* y, int first, int n, float divisor) {  // of |y|^2 / 2, over divisor
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = counts(first + i / width) ? y[i] / divisor : 0;
}

cublasHandle_t cublas;
// C[m, n] = alpha op(A) op(B) + beta C, row-major. cuBLAS is column-major: C^T = op(B)^T op(A)^T, so B comes first.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}

struct Result {
  std::vector<float> gradient = std::vector<float>(2 * layer_weights);
  size_t peak = 0;        // bytes
  double difference = 0;  // from another gradient, relative
};
// The gradient of the whole batch, `rows` at a time.
Result run(const char* what, int rows, bool own_divisor, const Result* whole = nullptr) {
  Result result;
  make_pool();
  float* w1 = allocate(2 * layer_weights);
  float* w2 = w1 + layer_weights;
  float* g1 = allocate(2 * layer_weights);
  float* g2 = g1 + layer_weights;
  fill<<<blocks, threads>>>(w1, batch * width, 2 * layer_weights, 0.1f);  // not the inputs' numbers
  CHECK(cudaGetLastError());
  const int n = rows * width;
  for (int first = 0; first < batch; first += rows) {
    float divisor = float(rows_that_count(0, batch));
    // Wrong: the micro-batch's own count, times the number of micro-batches. A mean of means is another gradient.
    if (own_divisor) divisor = float(rows_that_count(first, rows)) * batch / rows;
    float beta = 0;           // the first micro-batch overwrites
    if (first > 0) beta = 1;  // THE MITIGATION: the others add to the gradient
    float* x = allocate(n);
    float* h = allocate(n);
    float* y = allocate(n);
    float* dh = allocate(n);
    fill<<<blocks, threads>>>(x, first * width, n, 0.5f);
    matmul(false, false, rows, width, width, 1, x, w1, 0, h);  // h = relu(x @ w1)
    relu<<<blocks, threads>>>(h, h, n);
    matmul(false, false, rows, width, width, 1, h, w2, 0, y);  // y = h @ w2
    loss_gradient<<<blocks, threads>>>(y, first, n, divisor);
    float* dy = y;                                                // its gradient stands in its place by now
    matmul(true, false, width, width, rows, 1, h, dy, beta, g2);  // g2 += h.T @ dy
    matmul(false, true, rows, width, width, 1, dy, w2, 0, dh);    // dh = dy @ w2.T
    relu<<<blocks, threads>>>(dh, h, n);
    matmul(true, false, width, width, rows, 1, x, dh, beta, g1);  // g1 += x.T @ dh
    CHECK(cudaGetLastError());
    free_all({x, h, y, dh});  // after the kernels above, in the stream's order; the next micro-batch gets these bytes
  }
  CHECK(cudaMemcpy(result.gradient.data(), g1, 2 * layer_weights * sizeof(float), cudaMemcpyDeviceToHost));
  free_all({w1, g1});
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &result.peak));
  CHECK(cudaMemPoolDestroy(pool));
  std::printf("  %4d rows at a time, %-21s peak %4.1f MiB", rows, what, double(result.peak) / (1 << 20));
  if (whole) {
    double square = 0;
    double norm = 0;
    for (int i = 0; i < 2 * layer_weights; ++i) {
      const double expected = whole->gradient[i];
      const double d = result.gradient[i] - expected;
      square += d * d;
      norm += expected * expected;
    }
    result.difference = std::sqrt(square / norm);
    std::printf("  gradient off by %.0e", result.difference);
  }
  std::printf("\n");
  require(result.peak <= sizeof(float) * (4 * layer_weights + 4 * n) + rounding,
          "weights, gradients, and 4 arrays of these rows");
  return result;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
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
    require(micro.peak + saved <= whole.peak + rounding, "only one micro-batch's activations at a time");
    require(micro.difference < 1e-5, "the same gradient, up to the order of additions");
    require(means.difference > 1e-3, "a mean of means is another gradient");
  }
  std::puts("PASS");
}
