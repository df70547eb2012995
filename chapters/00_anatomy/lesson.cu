// nvcc -o lesson lesson.cu -lcublas
//
// The problem: "CUDA out of memory. Tried to allocate ..." The message names the last request. What filled the device
// is what came before it. Here that is one layer, Linear(8192, 8192), in FP32, trained with AdamW:
//
//   weights      8192 x 8192 floats                        256 MiB
//   activations  input and output, 64 rows of 8192 floats    4 MiB    the only part that the batch decides
//   gradients    one for each weight                       256 MiB
//   moments      two for each weight, AdamW's state        512 MiB    with them, four times the weights: 1 GiB
//
// The idea: ask the device. cudaMemGetInfo() before and after tells what each part takes, and what no tensor accounts
// for: the CUDA context, cuBLAS. Other programs on the device change these figures, too. A refused request is a result
// like any other: the program can go on. Only CUDA's "last error" stays set until cudaGetLastError() reads it.
// The price: each question is a call into the driver, which may wait for the GPU. So ask between phases.
#include <cublas_v2.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int width = 8192;                 // numbers of a row, in and out
constexpr int batch = 64;                   // rows
constexpr int weights = width * width;      // numbers; gradients and each of the moments have as many
constexpr int activations = batch * width;  // numbers of the input, and of the output
constexpr int threads = 256;                // of each block
constexpr int piece = 256;                  // numbers that a block works on, here one for each thread
static_assert(activations % piece == 0 && weights % piece == 0, "whole pieces");

// what: that which should hold; where: the call that failed, if it was one.
void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)  // #call is the text of the call; 0 is success

// The first kernel of the course: every thread runs it. A block works on one piece of the array. Its threads take the
// numbers that lie side by side, blockDim.x at a time: here each thread has one number. With fewer threads it has more.
__global__ void fill(float* p, float scale) {
  const int first = blockIdx.x * piece;
  for (int i = first + threadIdx.x; i < first + piece; i += blockDim.x) p[i] = scale * (i % 11 - 5);
}
// AdamW, without bias correction. __restrict__ promises that the arrays do not overlap: reads need not wait for writes.
__global__ void adamw(float* __restrict__ w, const float* __restrict__ g, float* __restrict__ m,
                      float* __restrict__ v) {
  const float rate = 1e-3f;
  const float beta1 = 0.9f;
  const float beta2 = 0.999f;
  const float decay = 0.01f;
  const int first = blockIdx.x * piece;
  for (int i = first + threadIdx.x; i < first + piece; i += blockDim.x) {
    const float mean = beta1 * m[i] + (1 - beta1) * g[i];
    const float square = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
    m[i] = mean;
    v[i] = square;
    w[i] -= rate * (mean / (sqrtf(square) + 1e-8f) + decay * w[i]);
  }
}

double MiB(double bytes) { return bytes / (1 << 20); }
size_t allocated = 0;  // bytes that this program has allocated; nothing is freed before the end, so it is a peak, too
long long used() {     // bytes in use, by all programs: a difference may be negative. The first call makes the context
  size_t free_bytes;
  size_t total;
  CHECK(cudaMemGetInfo(&free_bytes, &total));
  return static_cast<long long>(total - free_bytes);
}
size_t device_bytes() {
  size_t free_bytes;
  size_t total;
  CHECK(cudaMemGetInfo(&free_bytes, &total));
  return total;
}
void row(const char* what, double bytes) { std::printf("  %-38s %7.1f MiB\n", what, MiB(bytes)); }
float* allocate(const char* what, size_t count) {
  const long long before = used();
  float* p;
  CHECK(cudaMalloc(&p, count * sizeof(float)));
  allocated += count * sizeof(float);
  row(what, used() - before);
  return p;
}

cublasHandle_t cublas;
// C[m, n] = alpha op(A) op(B) + beta C, row-major. cuBLAS is column-major: C^T = op(B)^T op(A)^T, so B comes first.
// ta, tb: transpose. ta ? m : k is how long a stored row of A is, tb ? k : n how long one of B is.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}
std::vector<float> forward(const float* x, const float* w, float* y) {
  std::vector<float> result(activations);
  matmul(false, false, batch, width, width, 1, x, w, 0, y);  // y = x @ w
  CHECK(cudaMemcpy(result.data(), y, activations * sizeof(float), cudaMemcpyDeviceToHost));
  return result;
}

// Asks for what the device does not have, and launches a kernel after it.
void ask_for_too_much(bool clear, float* x) {
  const size_t asked = 16 * device_bytes();  // a driver may lend the host's memory (WSL does), but never so much
  const long long in_use = used();
  void* extra = nullptr;
  const cudaError_t error = cudaMalloc(&extra, asked);
  std::printf("asked for %.1f MiB more: %s (%s)\n", MiB(asked), cudaGetErrorName(error), cudaGetErrorString(error));
  require(error == cudaErrorMemoryAllocation, "more than what is free is refused");
  require(extra == nullptr, "a refused request takes nothing");
  row("taken by the refused request", used() - in_use);
  const cudaError_t expected = clear ? cudaSuccess : cudaErrorMemoryAllocation;
  if (clear) (void)cudaGetLastError();  // THE MITIGATION: or the check after the next kernel finds this error
  fill<<<activations / piece, threads>>>(x, 0.1f);
  const cudaError_t next = cudaGetLastError();  // asks whether the launch above was accepted: a launch returns nothing
  std::printf("  error %s; the check after the next kernel: %s\n", clear ? "cleared" : "left set",
              cudaGetErrorName(next));
  require(next == expected, "the next kernel is blamed only for an error that was left set");
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  const long long at_first = used();
  std::printf("Linear(%d, %d), batch %d, on %s with %.1f MiB\n", width, width, batch, device.name, MiB(device_bytes()));
  row("CUDA context, other programs", at_first);
  CHECK(cublasCreate(&cublas));
  const long long begin = used();
  row("cuBLAS handle", begin - at_first);

  float* w = allocate("weights", weights);
  float* x = allocate("activations, input", activations);
  float* y = allocate("activations, output", activations);
  const size_t inference = allocated;
  float* g = allocate("gradients", weights);
  float* m = allocate("AdamW, first moments", weights);
  float* v = allocate("AdamW, second moments", weights);
  const size_t training = allocated;
  row("together, for inference:  peak", inference);
  row("together, for training:   peak", training);
  require(inference == sizeof(float) * (size_t(weights) + 2 * activations), "inference takes 4 bytes per weight");
  require(training == sizeof(float) * (4 * size_t(weights) + 2 * activations), "training takes 16 bytes per weight");

  fill<<<weights / piece, threads>>>(w, 0.001f);
  fill<<<activations / piece, threads>>>(x, 0.1f);
  CHECK(cudaGetLastError());
  const std::vector<float> before = forward(x, w, y);
  row("kernels, cuBLAS, at their first use", used() - begin - double(training));
  if (without) ask_for_too_much(false, x);
  if (with) ask_for_too_much(true, x);

  const std::vector<float> after = forward(x, w, y);  // then a training step, as if nothing had happened
  std::printf("  output before and after: %s\n", before == after ? "bit-equal" : "different");
  require(before == after, "the output is the same after a refused request");
  matmul(true, false, width, width, batch, 1, x, y, 0, g);  // g = x.T @ y: the loss is |y|^2 / 2, whose gradient is y
  CHECK(cudaMemset(m, 0, weights * sizeof(float)));
  CHECK(cudaMemset(v, 0, weights * sizeof(float)));
  adamw<<<weights / piece, threads>>>(w, g, m, v);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  require(forward(x, w, y) != after, "the training step has changed the output");
  for (float* p : {w, x, y, g, m, v}) CHECK(cudaFree(p));
  CHECK(cublasDestroy(cublas));
  std::puts("PASS");
}
