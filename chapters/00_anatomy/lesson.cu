// nvcc -o lesson lesson.cu -lcublas
//
// The problem: "CUDA out of memory. Tried to allocate 256.00 MiB." The message names the last request. What filled the
// device is what came before it. Here that is one layer, Linear(8192, 8192), in FP32, trained with AdamW:
//
//   weights      8192 x 8192 floats                        256 MiB
//   activations  input and output, 64 rows of 8192 floats    4 MiB    the only part that the batch decides
//   gradients    one for each weight                       256 MiB
//   moments      two for each weight, AdamW's state        512 MiB    with them, four times the weights: 1 GiB
//
// The idea: ask the device. cudaMemGetInfo() before and after tells what each part takes, and what no tensor accounts
// for: the CUDA context, cuBLAS. Other programs on the device change these figures, too. A refused request is a result
// like any other: the program can go on. Only CUDA's "last error" stays set until cudaGetLastError() reads it. Asking
// costs no memory and next to no time, so a step pays nothing for it.
#include <cublas_v2.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int width = 8192, batch = 64, blocks = 1024, threads = 256;
constexpr size_t weights = size_t(width) * width, activations = size_t(batch) * width;  // floats; y has as many

const char* text(cudaError_t error) { return cudaGetErrorString(error); }
const char* text(cublasStatus_t status) { return cublasGetStatusString(status); }
void fail(const char* what, const char* why) {
  std::printf("FAIL: %s: %s\n", what, why);
  std::exit(1);
}
void require(bool good, const char* what) {
  if (!good) fail("expected", what);
}
template <class Status>
void check(Status status, const char* call) {
  if (status != Status(0)) fail(call, text(status));  // 0 is success for both
}
#define CHECK(call) check(call, #call)

// Some numbers. Block b takes rows b, b + gridDim.x, ...: right for any number of blocks and threads.
__global__ void fill(float* p, int rows, float scale) {
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
      p[size_t(r) * width + c] = scale * ((r * 7 + c * 3) % 11 - 5);
    }
  }
}
__global__ void adamw(float* w, const float* g, float* m, float* v) {
  const float rate = 1e-3f;
  const float beta1 = 0.9f;
  const float beta2 = 0.999f;
  const float decay = 0.01f;  // and no bias correction
  for (int r = blockIdx.x; r < width; r += gridDim.x) {
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
      const size_t i = size_t(r) * width + c;
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
      w[i] -= rate * (m[i] / (sqrtf(v[i]) + 1e-8f) + decay * w[i]);
    }
  }
}

double MiB(double bytes) { return bytes / (1 << 20); }
size_t total;          // bytes of the device
size_t allocated = 0;  // bytes that this program has allocated; nothing is freed before the end, so it is a peak, too
long long used() {     // bytes in use, by all programs: a difference may be negative. The first call makes the context
  size_t unused;
  CHECK(cudaMemGetInfo(&unused, &total));
  return static_cast<long long>(total - unused);
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

int main() {
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  const long long at_first = used();
  std::printf("Linear(%d, %d), batch %d, on %s with %.1f MiB\n", width, width, batch, device.name, MiB(total));
  row("CUDA context, other programs", at_first);
  cublasHandle_t cublas;
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

  const float one = 1;
  const float zero = 0;
  std::vector<float> before(activations);
  std::vector<float> after(activations);
  const auto forward = [&](std::vector<float>& result) {  // y = x w; cuBLAS stores by columns, and does y^T = w^T x^T
    CHECK(cublasSgemm(cublas, CUBLAS_OP_N, CUBLAS_OP_N, width, batch, width, &one, w, width, x, width, &zero, y,
                      width));
    CHECK(cudaMemcpy(result.data(), y, activations * sizeof(float), cudaMemcpyDeviceToHost));
  };
  fill<<<blocks, threads>>>(w, width, 0.001f);
  fill<<<blocks, threads>>>(x, batch, 0.1f);
  CHECK(cudaGetLastError());
  forward(before);
  row("kernels, cuBLAS, at their first use", used() - begin - double(training));

  const size_t asked = 16 * total;  // a driver may lend a full device the host's memory (WSL does), but never so much
  const long long in_use = used();
  void* extra = nullptr;
  const cudaError_t error = cudaMalloc(&extra, asked);
  std::printf("asked for %.1f MiB more: %s (%s)\n", MiB(asked), cudaGetErrorName(error), text(error));
  require(error == cudaErrorMemoryAllocation, "more than what is free is refused");
  (void)cudaGetLastError();  // THE MITIGATION: clears the error, or the check after the next kernel reports it
  row("taken by the refused request", used() - in_use);
  require(extra == nullptr, "a refused request takes nothing");

  forward(after);  // then a training step, as if nothing had happened: the loss is |y|^2 / 2, whose gradient is y
  CHECK(cublasSgemm(cublas, CUBLAS_OP_N, CUBLAS_OP_T, width, width, batch, &one, y, width, x, width, &zero, g, width));
  CHECK(cudaMemset(m, 0, weights * sizeof(float)));
  CHECK(cudaMemset(v, 0, weights * sizeof(float)));
  adamw<<<blocks, threads>>>(w, g, m, v);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  std::printf("  output before and after: %s\n", before == after ? "bit-equal" : "different");
  require(before == after, "the output is the same after a refused request");
  require(inference == 4 * weights + 2 * 4 * activations, "inference takes 4 bytes per weight");
  require(training == 16 * weights + 2 * 4 * activations, "training takes 16 bytes per weight");
  for (float* p : {w, x, y, g, m, v}) CHECK(cudaFree(p));
  CHECK(cublasDestroy(cublas));
  std::puts("PASS");
}
