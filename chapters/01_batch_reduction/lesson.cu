// nvcc -o lesson lesson.cu -lcublas
//
// The problem: the batch in the recipe runs out of memory. Which batch does not?
//
//   fixed       4 layers of 256 x 256 weights, and their gradients                2 MiB, whatever the batch is
//   per sample  5 activations of 256 floats, and the gradient of one of them      6 KiB
//
// The idea: peak = 2 MiB + 6 KiB x batch is a straight line. The largest batch under a budget is found by trying:
// double it until a step runs out of memory, then bisect. That works only if a failed step gives back all that it took.
// So a buffer is an object whose destructor frees it, which C++ also calls on the way out of a failure.
#include <cublas_v2.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <new>
#include <vector>

constexpr int layers = 4, width = 256, recipe = 2048, blocks = 32, threads = 256;
constexpr size_t layer = size_t(width) * width, weights = layers * layer, limit = 11 << 20;

void require(bool good, const char* what) {
  if (good) return;
  const cudaError_t error = cudaPeekAtLastError();
  std::printf("FAIL: %s%s%s\n", what, error ? ": " : "", error ? cudaGetErrorString(error) : "");
  std::exit(1);
}
#define CHECK(call) require(int(call) == 0, #call)  // cudaSuccess and CUBLAS_STATUS_SUCCESS are 0

size_t budget = SIZE_MAX, live = 0, peak = 0;  // bytes of all Buffers; nothing else is allocated
struct Buffer {
  float* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t count) : bytes(count * sizeof(float)) {
    if (live + bytes > budget) throw std::bad_alloc();  // as cudaMalloc() refuses when the device is full
    CHECK(cudaMalloc(&p, bytes));
    peak = std::max(peak, live += bytes);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { CHECK(cudaFree(p)), live -= bytes; }  // THE MITIGATION: a step that fails gives back what it took
};

__global__ void fill(float* p, size_t n, float scale) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    p[i] = scale * (int(i * 7919 % 1021) - 510);
}
// p becomes 0 where y is not positive: ReLU when p is y, ReLU's backward when p is a gradient.
__global__ void where_positive(float* p, const float* y, size_t n) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    if (!(y[i] > 0)) p[i] = 0;
}

cublasHandle_t cublas;
// c = a b. As cuBLAS has it, numbers of a column are neighbours; a column is a sample. op: transposed or not.
void gemm(cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const float* a, const float* b,
          float* c) {
  const float one = 1, zero = 0;
  const int lda = op_a == CUBLAS_OP_N ? m : k, ldb = op_b == CUBLAS_OP_N ? k : n;
  CHECK(cublasSgemm(cublas, op_a, op_b, m, n, k, &one, a, lda, b, ldb, &zero, c, m));
}

// Forward and backward of the loss |y|^2 / 2, whose gradient is y. Only g is written.
void step(const Buffer& w, Buffer& g, int batch) {
  const size_t n = size_t(batch) * width;
  std::deque<Buffer> y;  // the input, then what each layer puts out
  fill<<<blocks, threads>>>(y.emplace_back(n).p, n, 1e-3f);
  for (int l = 0; l < layers; ++l) {
    gemm(CUBLAS_OP_N, CUBLAS_OP_N, width, batch, width, w.p + l * layer, y[l].p, y.emplace_back(n).p);
    where_positive<<<blocks, threads>>>(y[l + 1].p, y[l + 1].p, n);
  }
  Buffer gradient(n);
  for (int l = layers - 1; l >= 0; --l) {  // y[l + 1] is its own gradient by now
    gemm(CUBLAS_OP_N, CUBLAS_OP_T, width, width, batch, y[l + 1].p, y[l].p, g.p + l * layer);
    gemm(CUBLAS_OP_T, CUBLAS_OP_N, width, batch, width, w.p + l * layer, y[l + 1].p, gradient.p);
    where_positive<<<blocks, threads>>>(gradient.p, y[l].p, n);
    std::swap(gradient.p, y[l].p);
  }
  CHECK(cudaPeekAtLastError());
}
bool fits(const Buffer& w, Buffer& g, int batch) {
  try {
    step(w, g, batch);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}
int largest_batch(const Buffer& w, Buffer& g) {
  int good = 0, bad = 0, batch = 1;  // bad is 0 until a step has failed
  std::printf("  tried, ! is out of memory:");
  do {
    const bool fitted = fits(w, g, batch);
    std::printf(" %d%s", batch, fitted ? "" : "!");
    (fitted ? good : bad) = batch;
    batch = bad ? (good + bad) / 2 : 2 * good;
  } while (batch != good);
  std::printf("\n");
  return good;
}
void run() {
  Buffer w(weights), g(weights);
  std::vector<float> before(weights), after(weights);
  fill<<<blocks, threads>>>(w.p, weights, 2e-4f);
  CHECK(cudaMemcpy(before.data(), w.p, w.bytes, cudaMemcpyDeviceToHost));
  const size_t fixed = live, MiB = 1 << 20;
  std::printf("%d layers of %d x %d floats, a budget of %.1f MiB\n", layers, width, width, limit / double(MiB));
  step(w, g, recipe);
  std::printf("  batch %d, without the budget     peak %5.1f MiB\n", recipe, peak / double(MiB));
  require(peak > limit, "the recipe's batch should need more than the budget");
  budget = limit;
  int batch = recipe;
  batch = largest_batch(w, g);  // THE MITIGATION: what fits is found by trying
  peak = 0;
  require(fits(w, g, batch), "the batch does not fit in the budget");
  std::printf("  batch %d, the largest that fits  peak %5.1f MiB\n", batch, peak / double(MiB));
  CHECK(cudaMemcpy(after.data(), w.p, w.bytes, cudaMemcpyDeviceToHost));
  std::printf("  bytes left behind by all the steps: %zu\n  weights before and after: %s\n", live - fixed,
              before == after ? "bit-equal" : "different");
  require(live == fixed && before == after, "steps leave nothing behind");
  require(peak <= limit && peak == fixed + size_t(batch) * 6 * width * sizeof(float), "the peak is on the line");
}

int main() {
  CHECK(cublasCreate(&cublas));
  run();
  CHECK(cublasDestroy(cublas));
  std::puts("PASS");
}
