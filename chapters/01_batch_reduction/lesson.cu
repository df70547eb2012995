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
// The price: the search, 22 steps here, once. And a smaller batch keeps a GPU less busy, and its gradient is noisier.
#include <cublas_v2.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <utility>
#include <vector>

constexpr int layers = 4;
constexpr int width = 256;                   // numbers of a row, in and out of each layer
constexpr int layer_weights = width * width;
constexpr int weights = layers * layer_weights;
constexpr int recipe = 2048;                 // the batch that was asked for
constexpr size_t budget = size_t(11) << 20;  // bytes of all Buffers
constexpr int blocks = 32;                   // of each kernel
constexpr int threads = 256;                 // of each block

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)  // 0 is cudaSuccess, and CUBLAS_STATUS_SUCCESS

// Bytes of all Buffers: what they may have, have now, and had at the peak. The CUDA context and cuBLAS come on top.
size_t limit = SIZE_MAX;
size_t live = 0;
size_t peak = 0;
struct Buffer {
  float* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t count) : bytes(count * sizeof(float)) {
    cudaError_t error = cudaErrorMemoryAllocation;
    if (live + bytes <= limit) error = cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // clears it, see chapter 00
      throw std::bad_alloc();
    }
    CHECK(error);
    live += bytes;
    peak = std::max(peak, live);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {            // cudaFree waits for kernels that still use p
    CHECK(cudaFree(p));  // THE MITIGATION, 1: a step that fails gives back what it took
    live -= bytes;       // THE MITIGATION, 1: which is not counted any more
  }
};

// Thread blockIdx.x * blockDim.x + threadIdx.x of all takes every (gridDim.x * blockDim.x)-th element, as in all
// kernels to come. Any number of blocks is right; a few for each of the GPU's multiprocessors are fast. Here 32 do.
__global__ void fill(float* p, int n, float scale) {  // pseudo-random numbers between -scale and scale
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const unsigned hash = unsigned(i + 1) * 2654435761u;
    p[i] = scale * ((hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f);
  }
}
// ReLU when p is y, ReLU's backward pass when p is a gradient. NaN stays NaN, or it would hide an overflow.
__global__ void relu(float* p, const float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    if (y[i] <= 0) p[i] = 0;
}

cublasHandle_t cublas;
// C[m, n] = alpha op(A) op(B) + beta C, row-major. cuBLAS is column-major: C^T = op(B)^T op(A)^T, so B comes first.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}

// Forward and backward of the loss |y|^2 / 2, whose gradient is y. Only g is written.
void step(const Buffer& w, Buffer& g, int batch) {
  const int n = batch * width;
  std::deque<Buffer> y;  // the input, then what each layer puts out; a deque, because it never moves them
  y.emplace_back(n);
  fill<<<blocks, threads>>>(y[0].p, n, 0.5f);
  CHECK(cudaGetLastError());
  for (int l = 0; l < layers; ++l) {
    y.emplace_back(n);
    matmul(false, false, batch, width, width, 1, y[l].p, w.p + l * layer_weights, 0, y[l + 1].p);  // = y[l] @ w
    relu<<<blocks, threads>>>(y[l + 1].p, y[l + 1].p, n);
    CHECK(cudaGetLastError());
  }
  Buffer gradient(n);
  // y[l + 1] is a gradient by now. The last y is the loss's, and 0 where its ReLU was; the others come from the swap
  // below. The input needs none.
  for (int l = layers - 1; l >= 0; --l) {
    matmul(true, false, width, width, batch, 1, y[l].p, y[l + 1].p, 0, g.p + l * layer_weights);  // y[l].T @ y[l + 1]
    if (l == 0) break;
    matmul(false, true, batch, width, width, 1, y[l + 1].p, w.p + l * layer_weights, 0, gradient.p);  // y[l + 1] @ w.T
    relu<<<blocks, threads>>>(gradient.p, y[l].p, n);
    CHECK(cudaGetLastError());
    std::swap(gradient.p, y[l].p);  // y[l] is not needed any more, and its memory takes the next gradient
  }
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
size_t on_the_line(int batch) { return sizeof(float) * (2 * weights + size_t(batch) * (layers + 2) * width); }
void run(bool with, bool without) {
  Buffer w(weights);
  Buffer g(weights);
  std::vector<float> before(weights);
  std::vector<float> after(weights);
  fill<<<blocks, threads>>>(w.p, weights, 0.1f);
  CHECK(cudaGetLastError());
  const size_t fixed = live;
  const double MiB = 1 << 20;
  std::printf("%d layers of %d x %d floats, a budget of %.1f MiB\n", layers, width, width, budget / MiB);
  if (without) {
    step(w, g, recipe);
    CHECK(cudaMemcpy(before.data(), g.p, g.bytes, cudaMemcpyDeviceToHost));
    std::printf("  batch %d, without the budget     peak %5.1f MiB\n", recipe, peak / MiB);
    require(peak == on_the_line(recipe), "the recipe's peak is on the line");
  }
  if (!with) return;
  limit = budget;
  int batch = recipe;
  require(!fits(w, g, batch), "the recipe's batch does not fit in the budget");
  batch = largest_batch(w, g);  // THE MITIGATION, 2: what fits is found by trying
  peak = 0;
  require(fits(w, g, batch), "the batch fits in the budget");
  std::printf("\n  batch %d, the largest that fits  peak %5.1f MiB\n", batch, peak / MiB);
  require(peak == on_the_line(batch), "the peak is on the line");
  require(peak <= budget && budget < on_the_line(batch + 1), "the largest that fits");
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
