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
// The price is the search, once: as many steps as doublings and halvings, 22 here. No step of the training is slower.
#include <cublas_v2.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <vector>

constexpr int layers = 4, width = 256, recipe = 2048, blocks = 32, threads = 256;
constexpr size_t layer = size_t(width) * width, weights = layers * layer, budget = 11 << 20;

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require(int(call) == 0, #call)  // cudaSuccess and CUBLAS_STATUS_SUCCESS are 0

// Bytes of all Buffers: what they may have, have now, and had at the peak. The CUDA context and cuBLAS come on top.
size_t limit = SIZE_MAX;
size_t live = 0;
size_t peak = 0;
struct Buffer {
  float* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t count) : bytes(count * sizeof(float)) {
    const cudaError_t error = live + bytes > limit ? cudaErrorMemoryAllocation : cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // clears it, see chapter 00
      throw std::bad_alloc();
    }
    CHECK(error);
    live += bytes;
    peak = std::max(peak, live);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    CHECK(cudaFree(p));  // THE MITIGATION, 1: a step that fails gives back what it took
    live -= bytes;       // THE MITIGATION, 1: and counts it
  }
};

__global__ void fill(float* p, size_t n, float scale) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    p[i] = scale * (int(i * 7919 % 1021) - 510);
}
// p becomes 0 where y is not positive (NaN, too): ReLU when p is y, ReLU's backward when p is a gradient.
__global__ void relu(float* p, const float* y, size_t n) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    if (!(y[i] > 0)) p[i] = 0;
}

cublasHandle_t cublas;
// c = a b, all stored column by column, as cuBLAS has it; a sample is a column. op: transposed or not.
void gemm(cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const float* a, const float* b,
          float* c) {
  const float one = 1;
  const float zero = 0;
  const int lda = op_a == CUBLAS_OP_N ? m : k;
  const int ldb = op_b == CUBLAS_OP_N ? k : n;
  CHECK(cublasSgemm(cublas, op_a, op_b, m, n, k, &one, a, lda, b, ldb, &zero, c, m));
}

// Forward and backward of the loss |y|^2 / 2, whose gradient is y. Only g is written.
void step(const Buffer& w, Buffer& g, int batch) {
  const size_t n = size_t(batch) * width;
  std::deque<Buffer> y;  // the input, then what each layer puts out; a deque, because it never moves them
  fill<<<blocks, threads>>>(y.emplace_back(n).p, n, 1e-3f);
  for (int l = 0; l < layers; ++l) {
    y.emplace_back(n);
    gemm(CUBLAS_OP_N, CUBLAS_OP_N, width, batch, width, w.p + l * layer, y[l].p, y[l + 1].p);
    relu<<<blocks, threads>>>(y[l + 1].p, y[l + 1].p, n);
  }
  Buffer gradient(n);
  for (int l = layers - 1; l >= 0; --l) {  // y[l + 1] is a gradient by now: the loss's, or from the swap below
    gemm(CUBLAS_OP_N, CUBLAS_OP_T, width, width, batch, y[l + 1].p, y[l].p, g.p + l * layer);
    gemm(CUBLAS_OP_T, CUBLAS_OP_N, width, batch, width, w.p + l * layer, y[l + 1].p, gradient.p);
    relu<<<blocks, threads>>>(gradient.p, y[l].p, n);
    std::swap(gradient.p, y[l].p);  // y[l] is not needed any more, and its memory takes the next gradient
  }
  CHECK(cudaPeekAtLastError());
}
bool fits(const Buffer& w, Buffer& g, int batch) try {
  step(w, g, batch);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}
int largest_batch(const Buffer& w, Buffer& g) {
  int good = 0;  // the largest that fitted
  int bad = 0;   // the smallest that did not; 0 until a step has failed
  int batch = 1;
  std::printf("  tried, ! is out of memory:");
  do {
    const bool fitted = fits(w, g, batch);
    std::printf(" %d%s", batch, fitted ? "" : "!");
    if (fitted) good = batch;
    if (!fitted) bad = batch;  // at the end good + 1 == bad
    batch = bad ? (good + bad) / 2 : 2 * good;
  } while (batch != good);
  return good;
}
void run(bool with, bool without) {
  Buffer w(weights);
  Buffer g(weights);
  std::vector<float> before(weights);
  std::vector<float> after(weights);
  fill<<<blocks, threads>>>(w.p, weights, 2e-4f);
  const size_t fixed = live;
  const double MiB = 1 << 20;
  std::printf("%d layers of %d x %d floats, a budget of %.1f MiB\n", layers, width, width, budget / MiB);
  if (without) {
    step(w, g, recipe);
    CHECK(cudaMemcpy(before.data(), g.p, g.bytes, cudaMemcpyDeviceToHost));
    std::printf("  batch %d, without the budget     peak %5.1f MiB\n", recipe, peak / MiB);
  }
  if (!with) return;
  limit = budget;
  int batch = recipe;
  require(!fits(w, g, batch), "the recipe's batch does not fit in the budget");
  batch = largest_batch(w, g);  // THE MITIGATION, 2: what fits is found by trying
  peak = 0;
  require(fits(w, g, batch), "the batch fits in the budget");
  std::printf("\n  batch %d, the largest that fits  peak %5.1f MiB\n", batch, peak / MiB);
  require(peak <= budget && peak == fixed + size_t(batch) * (layers + 2) * width * 4, "the peak is on the line");
  if (!without) return;
  limit = SIZE_MAX;
  step(w, g, recipe);
  CHECK(cudaMemcpy(after.data(), g.p, g.bytes, cudaMemcpyDeviceToHost));
  std::printf("  bytes left behind by all the steps: %zu\n  the recipe's gradient before and after: %s\n", live - fixed,
              before == after ? "bit-equal" : "different");
  require(live == fixed && before == after, "failed steps leave nothing behind, and change nothing");
}
int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  run(with, without);
  CHECK(cublasDestroy(cublas));
  std::puts("PASS");
}
