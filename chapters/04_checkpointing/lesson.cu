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
// The price of a step: seven matrix products for a layer instead of six, since h is computed twice. The last layer is
// spared that: its backward pass comes first, so its h and a are not dropped.
#include <cublas_v2.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int layers = 8;
constexpr int rows = 1024;               // of the batch
constexpr int width = 64;                // numbers of a row of x
constexpr int hidden = 4 * width;        // numbers of a row of h or a
constexpr int x_count = rows * width;    // numbers of an x
constexpr int h_count = rows * hidden;   // numbers of an h or an a
constexpr int w_count = width * hidden;  // numbers of W1 or W2
constexpr int all_weights = 2 * layers * w_count;
constexpr int steps = 3;
constexpr size_t rounding = size_t(1) << 16;  // bytes by which the pool may count more than was asked for
constexpr int blocks = 32;                    // of each kernel
constexpr int threads = 256;                  // of each block

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)  // 0 is cudaSuccess, and CUBLAS_STATUS_SUCCESS

__global__ void fill(float* p, int count, float scale) {  // pseudo-random numbers between -scale and scale
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const unsigned hash = unsigned(i + 1) * 2654435761u;
    p[i] = scale * ((hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f);
  }
}
__global__ void squared_relu(const float* h, float* a) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < h_count; i += gridDim.x * blockDim.x)
    a[i] = h[i] <= 0 ? 0 : h[i] * h[i];  // NaN stays NaN
}
__global__ void squared_relu_backward(const float* h, float* d) {  // d: a's gradient becomes h's
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < h_count; i += gridDim.x * blockDim.x)
    d[i] *= h[i] <= 0 ? 0 : 2 * h[i];
}

cublasHandle_t cublas;
cudaMemPool_t pool;  // a run has its own, which keeps the record: the most bytes that were in use
float* weights;      // W1 and W2 of every layer
struct Layer {
  float* x;  // its input
  float* h;  // null while h and a are not in memory; a is not asked
  float* a;
};
Layer layer[layers + 1];  // the last one has only an x: the output
int computed;             // how many times forward() has run

void make_pool() {
  cudaMemPoolProps properties = {};  // location.id is 0: the first device
  properties.allocType = cudaMemAllocationTypePinned;  // it stays where it is made: on the device, by the next line
  properties.location.type = cudaMemLocationTypeDevice;
  CHECK(cudaMemPoolCreate(&pool, &properties));
}
// In the stream's order: a kernel that was started before still has its memory, and what comes after may get it again.
float* allocate(size_t count) {
  void* p = nullptr;
  CHECK(cudaMallocFromPoolAsync(&p, count * sizeof(float), pool, 0));
  return static_cast<float*>(p);
}
void release(float* p) { CHECK(cudaFreeAsync(p, 0)); }
float* w1(int l) { return weights + 2 * l * w_count; }
float* w2(int l) { return w1(l) + w_count; }

// C[m, n] = alpha op(A) op(B) + beta C, row-major. cuBLAS is column-major: C^T = op(B)^T op(A)^T, so B comes first.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}

void forward(Layer& l, const float* w) {
  l.h = allocate(h_count);
  l.a = allocate(h_count);
  matmul(false, false, rows, hidden, width, 1, l.x, w, 0, l.h);  // h = x @ W1
  squared_relu<<<blocks, threads>>>(l.h, l.a);
  CHECK(cudaGetLastError());
  ++computed;
}
void drop(Layer& l) {
  release(l.h);
  release(l.a);
  l.h = nullptr;
}

void step(bool checkpoint, float rate) {
  for (int i = 0; i < layers; ++i) {
    Layer& l = layer[i];
    layer[i + 1].x = allocate(x_count);
    forward(l, w1(i));
    CHECK(cudaMemcpyAsync(layer[i + 1].x, l.x, x_count * sizeof(float), cudaMemcpyDeviceToDevice, 0));
    matmul(false, false, rows, width, hidden, 1, l.a, w2(i), 1, layer[i + 1].x);  // next x = x + a @ W2
    if (checkpoint && i + 1 < layers) drop(l);                                    // THE MITIGATION
  }
  float* dx = layer[layers].x;  // the loss is |output|^2 / 2, so the output is its own gradient
  for (int i = layers - 1; i >= 0; --i) {
    Layer& l = layer[i];
    if (!l.h) forward(l, w1(i));  // THE MITIGATION
    float* d = allocate(h_count);
    matmul(false, true, rows, hidden, width, 1, dx, w2(i), 0, d);        // d = dx @ W2.T, then an SGD step:
    matmul(true, false, hidden, width, rows, -rate, l.a, dx, 1, w2(i));  // W2 -= rate * a.T @ dx, no gradient stored
    squared_relu_backward<<<blocks, threads>>>(l.h, d);
    CHECK(cudaGetLastError());
    drop(l);
    matmul(false, true, rows, width, hidden, 1, d, w1(i), 1, dx);       // dx += d @ W1.T
    matmul(true, false, width, hidden, rows, -rate, l.x, d, 1, w1(i));  // W1 -= rate * x.T @ d
    release(d);
    if (i > 0) release(l.x);
  }
  release(dx);
}

struct Run {
  size_t peak = 0;  // bytes
  std::vector<float> host_weights = std::vector<float>(all_weights);
};
Run train(const char* what, bool checkpoint) {
  Run run;
  make_pool();
  computed = 0;
  weights = allocate(all_weights);
  layer[0].x = allocate(x_count);
  fill<<<blocks, threads>>>(weights, all_weights, 0.05f);
  fill<<<blocks, threads>>>(layer[0].x, x_count, 1.0f);
  CHECK(cudaGetLastError());
  for (int s = 0; s < steps; ++s) step(checkpoint, 1e-3f);
  CHECK(cudaMemcpy(run.host_weights.data(), weights, all_weights * sizeof(float), cudaMemcpyDeviceToHost));
  for (float* p : {weights, layer[0].x}) release(p);
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &run.peak));
  CHECK(cudaMemPoolDestroy(pool));
  std::printf("  %-34s peak %5.2f MiB, h and a computed %d times\n", what, run.peak / 1048576.0, computed);
  const size_t waiting = checkpoint ? 1 : layers;  // layers whose h and a are in memory as the backward pass begins
  const size_t count = all_weights + (layers + 1) * x_count + h_count + 2 * waiting * h_count;
  require(run.peak <= count * sizeof(float) + rounding, "the peak by the formula");
  return run;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  std::printf("%d layers of width %d, %d rows, FP32, %d steps\n", layers, width, rows, steps);
  Run kept;
  Run again;
  if (without) kept = train("keep every h and a", false);
  if (with) again = train("keep x only, compute h and a again", true);
  CHECK(cublasDestroy(cublas));
  if (with && without) {
    const bool equal = kept.host_weights == again.host_weights &&  // false if one is NaN, which does not equal itself
                       !std::memcmp(kept.host_weights.data(), again.host_weights.data(), all_weights * sizeof(float));
    std::printf("  weights after %d steps: %s\n", steps, equal ? "bit-equal" : "different");
    require(equal, "the same weights");
    const size_t saved_bytes = (layers - 1) * 2 * h_count * sizeof(float);
    require(again.peak + saved_bytes <= kept.peak + rounding, "one layer's h and a at a time");
  }
  std::puts("PASS");
}
