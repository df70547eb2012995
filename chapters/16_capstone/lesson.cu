// nvcc -o lesson lesson.cu -lcublas
//
// Three levers in one training step, one after the other. A layer: a = max(x W1, 0), next x = x + a W2.
//     checkpoints       keep each layer's x; compute its a again before its backward pass
//     micro-batches     an eighth of the rows at a time; gradients add up
//     16-bit momentum   the optimizer's m is stored in BF16, and computed with in FP32
// Bytes, with n weights, L layers, and u = 4 * rows * width for an x, 4 u for an a or its gradient:
//     textbook     weights, gradients, m  12 n      the input u   activations L u + 4 u L + 4 u
//     all three                           10 n      the same      activations L u + 4 u + 4 u, of rows / 8
// Savings do not multiply: what one lever has taken is not there for the next one.
// The price of a step: seven products for a layer instead of six, smaller products, and the rounding of m.
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

constexpr int layers = 8;
constexpr int batch = 1024;              // rows of the input
constexpr int width = 64;                // numbers of a row of x
constexpr int hidden = 4 * width;        // numbers of a row of a
constexpr int w_count = width * hidden;  // weights of W1 or W2
constexpr int weights = 2 * layers * w_count;
constexpr int steps = 6;
constexpr float keep = 0.9f;  // of the momentum, in each step
constexpr float rate = 2e-5f;
constexpr size_t rounding = size_t(1) << 16;  // bytes by which the pool may count more than was asked for
constexpr int blocks = 32;
constexpr int threads = 256;
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)  // 0 is cudaSuccess, and CUBLAS_STATUS_SUCCESS

// ReLU when p is a, ReLU's backward pass when p is a's gradient. NaN stays NaN.
__global__ void relu(float* p, const float* a, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    if (a[i] <= 0) p[i] = 0;
}
template <class Stored>  // what m, the momentum, is stored as
__global__ void sgd(float* w, const float* g, Stored* m) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < weights; i += gridDim.x * blockDim.x) {
    const float now = keep * float(m[i]) + g[i];
    m[i] = Stored(now);
    w[i] -= rate * now;
  }
}
cublasHandle_t cublas;
cudaMemPool_t pool;  // a run has its own, which keeps the record: the most bytes that were in use
void make_pool() {
  cudaMemPoolProps properties = {};  // location.id is 0: the first device
  properties.allocType = cudaMemAllocationTypePinned;  // it stays where it is made: on the device, by the next line
  properties.location.type = cudaMemLocationTypeDevice;
  CHECK(cudaMemPoolCreate(&pool, &properties));
}
float* allocate(size_t count) {  // as many numbers of 4 bytes
  void* p = nullptr;
  CHECK(cudaMallocFromPoolAsync(&p, count * sizeof(float), pool, 0));
  return static_cast<float*>(p);
}
void release(float* p) { CHECK(cudaFreeAsync(p, 0)); }
// C[m, n] = alpha op(A) op(B) + beta C, row-major. cuBLAS is column-major: C^T = op(B)^T op(A)^T, so B comes first.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}

bool checkpoints = false;  // the first lever
int rows = batch;          // the second: rows of a micro-batch
bool bf16 = false;         // the third: m in BF16
float* w1(float* p, int layer) { return p + 2 * layer * w_count; }  // p: the weights, or the gradients
float* w2(float* p, int layer) { return w1(p, layer) + w_count; }
float* forward(const float* x, const float* w) {  // a = relu(x @ W1)
  float* a = allocate(rows * hidden);
  matmul(false, false, rows, hidden, width, 1, x, w, 0, a);
  relu<<<blocks, threads>>>(a, a, rows * hidden);
  CHECK(cudaGetLastError());
  return a;
}
// Adds the gradients of some rows to g. The loss is |output|^2 / 2, so the output is its own gradient.
void add_gradients(float* input, float* w, float* g) {
  float* x[layers + 1] = {input};  // the last one is the output
  float* a[layers];
  for (int i = 0; i < layers; ++i) {
    a[i] = forward(x[i], w1(w, i));
    x[i + 1] = allocate(rows * width);
    CHECK(cudaMemcpyAsync(x[i + 1], x[i], rows * width * sizeof(float), cudaMemcpyDeviceToDevice, 0));
    matmul(false, false, rows, width, hidden, 1, a[i], w2(w, i), 1, x[i + 1]);  // next x = x + a @ W2
    if (checkpoints && i + 1 < layers) release(a[i]);                           // THE MITIGATION: only x stays
  }
  float* dx = x[layers];
  for (int i = layers - 1; i >= 0; --i) {
    if (checkpoints && i + 1 < layers) a[i] = forward(x[i], w1(w, i));  // THE MITIGATION: a once more
    float* d = allocate(rows * hidden);
    matmul(false, true, rows, hidden, width, 1, dx, w2(w, i), 0, d);     // d = dx @ W2.T, a's gradient
    matmul(true, false, hidden, width, rows, 1, a[i], dx, 1, w2(g, i));  // W2's gradient += a.T @ dx
    relu<<<blocks, threads>>>(d, a[i], rows * hidden);
    CHECK(cudaGetLastError());
    release(a[i]);
    matmul(false, true, rows, width, hidden, 1, d, w1(w, i), 1, dx);    // dx += d @ W1.T
    matmul(true, false, width, hidden, rows, 1, x[i], d, 1, w1(g, i));  // W1's gradient += x.T @ d
    release(d);
    if (i > 0) release(x[i]);
  }
  release(dx);
}
Numbers numbers(int count, float scale) {  // pseudo-random, between -scale and scale
  Numbers values(count);
  std::minstd_rand random;
  for (float& value : values) value = scale * (2.0f * random() / random.max() - 1);
  return values;
}
const Numbers start = numbers(weights, 0.05f);
const Numbers samples = numbers(batch * width, 1);
double distance(const Numbers& a, const Numbers& b) {
  double square = 0;
  for (int i = 0; i < weights; ++i) square += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::sqrt(square);
}
Numbers first_weights;  // of the first run, with which the others are compared
size_t last_peak = 0;   // of the run before
void train(const char* what, double share, double tolerance) {  // share: the most that it may have of the last peak
  make_pool();
  float* w = allocate(weights);
  float* g = allocate(weights);
  float* input = allocate(batch * width);
  const size_t m_count = bf16 ? weights / 2 : weights;  // of 4 bytes each; BF16 has two numbers in them
  float* m = allocate(m_count);
  CHECK(cudaMemsetAsync(m, 0, m_count * sizeof(float), 0));
  CHECK(cudaMemcpy(w, start.data(), weights * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(input, samples.data(), batch * width * sizeof(float), cudaMemcpyHostToDevice));
  for (int t = 0; t < steps; ++t) {
    CHECK(cudaMemsetAsync(g, 0, weights * sizeof(float), 0));
    for (int row = 0; row < batch; row += rows) add_gradients(input + row * width, w, g);
    if (bf16) sgd<__nv_bfloat16><<<blocks, threads>>>(w, g, reinterpret_cast<__nv_bfloat16*>(m));
    if (!bf16) sgd<float><<<blocks, threads>>>(w, g, m);
    CHECK(cudaGetLastError());
  }
  Numbers trained(weights);
  size_t peak = 0;  // bytes
  CHECK(cudaMemcpy(trained.data(), w, weights * sizeof(float), cudaMemcpyDeviceToHost));
  for (float* p : {w, g, input, m}) release(p);
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &peak));
  CHECK(cudaMemPoolDestroy(pool));
  if (first_weights.empty()) first_weights = trained;
  const double off = distance(trained, first_weights) / distance(first_weights, start);
  std::printf("%-17s  peak %5.2f MiB  weights off by %.1e of the way they moved\n", what, peak / 1048576.0, off);
  require(off <= tolerance, "the same weights, to the bit or nearly so");
  const size_t waiting = checkpoints ? 1 : layers;  // layers whose a is in memory at the peak
  const size_t count = 2 * weights + m_count + batch * width + (layers + 4 * waiting + 4) * rows * width;
  require(peak <= count * sizeof(float) + rounding, "the peak by the formula");
  require(last_peak == 0 || peak < share * last_peak, "each lever saves of what the others leave");
  last_peak = peak;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  if (without) train("textbook", 1, 0);
  checkpoints = true;  // THE MITIGATION: checkpoints
  if (with) train("+ checkpoints", 0.6, 0);
  rows = batch / 8;  // THE MITIGATION: micro-batches
  if (with) train("+ micro-batches", 0.6, 1e-4);
  bf16 = true;  // THE MITIGATION: momentum in 16 bits
  if (with) train("+ 16-bit momentum", 0.9, 0.01);
  CHECK(cublasDestroy(cublas));
  std::puts("PASS");
}
