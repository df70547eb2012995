// nvcc -o lesson lesson.cu -lcublas
//
// Three levers in one training step, one after the other. A layer: h = x W1, a = max(h, 0)^2, next x = x + a W2.
//     checkpoints     keep each layer's x; compute its h and a again before its backward pass
//     micro-batches   an eighth of the rows at a time; gradients add up
//     8-bit momentum  the optimizer's m is a byte, and a group of 256 shares a scale
// Bytes, with n weights, L layers, and u = 4 * rows * width for an x, 4 u for an h, an a, or the gradient of an h:
//     textbook      weights, gradients, m  12 n      the input u   activations L u + 8 u L + 4 u
//     all three                             9.02 n   the same      activations L u + 8 u + 4 u, of rows / 8
// Savings do not multiply: what one lever has taken is not there for the next one.
// The price of a step: seven products for a layer instead of six (but for the last layer, whose backward pass comes
// first), small products, and rounding to eight bits.
#include <cublas_v2.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int layers = 8;
constexpr int batch = 1024;              // rows of the input
constexpr int width = 64;                // numbers of a row of x
constexpr int hidden = 4 * width;        // numbers of a row of h or a
constexpr int w_count = width * hidden;  // weights of W1 or W2
constexpr int weights = 2 * layers * w_count;
constexpr int group = 256;  // weights whose momentum shares a scale
constexpr int steps = 6;
constexpr float momentum = 0.9f;
constexpr float rate = 2e-5f;
constexpr size_t rounding = size_t(1) << 16;  // bytes by which the pool may count more than was asked for
constexpr int blocks = 32;
constexpr int threads = 256;
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what, const char* of = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", of, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)  // 0 is cudaSuccess, and CUBLAS_STATUS_SUCCESS

__global__ void squared_relu(const float* h, float* a, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    a[i] = fmaxf(h[i], 0) * fmaxf(h[i], 0);
}
__global__ void squared_relu_backward(const float* h, float* d, int count) {  // d: a's gradient becomes h's
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    d[i] *= 2 * fmaxf(h[i], 0);
}
__global__ void sgd(float* w, const float* g, float* m) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < weights; i += gridDim.x * blockDim.x) {
    const float now = momentum * m[i] + g[i];
    m[i] = now;
    w[i] -= rate * now;
  }
}
// Four numbers that a thread reads at once, as float4 and char4, but with an index: 16 bytes of weights, 4 of codes.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T value[4];
};
// m = scale * code / 127. A block of threads takes a group, a thread four weights. The new m wait in shared memory
// until the largest of them is known. Halves instead of shuffles: right for any number of threads, one included.
__global__ void sgd_8_bits(Four<float>* w, const Four<float>* g, Four<int8_t>* codes, float* scales) {
  __shared__ float m[group];
  __shared__ float largest[group / 4];
  for (int b = blockIdx.x; b < weights / group; b += gridDim.x) {
    const float old_scale = scales[b];
    for (int k = threadIdx.x; k < group / 4; k += blockDim.x) {
      const int i = b * (group / 4) + k;
      Four<float> weight = w[i];
      const Four<float> gradient = g[i];
      const Four<int8_t> code = codes[i];
      float mine = 0;
      for (int j = 0; j < 4; ++j) {
        const float now = momentum * (old_scale * code.value[j] / 127) + gradient.value[j];
        weight.value[j] -= rate * now;
        m[4 * k + j] = now;
        mine = fmaxf(mine, fabsf(now));
      }
      largest[k] = mine;
      w[i] = weight;
    }
    for (int half = group / 8; half > 0; half /= 2) {  // the upper half goes into the lower half
      __syncthreads();
      for (int k = threadIdx.x; k < half; k += blockDim.x) largest[k] = fmaxf(largest[k], largest[k + half]);
    }
    __syncthreads();
    const float scale = fmaxf(largest[0], 1e-30f);
    for (int k = threadIdx.x; k < group / 4; k += blockDim.x) {
      Four<int8_t> code;
      for (int j = 0; j < 4; ++j) code.value[j] = int8_t(rintf(127 * m[4 * k + j] / scale));
      codes[b * (group / 4) + k] = code;
    }
    if (threadIdx.x == 0) scales[b] = scale;
    __syncthreads();  // before the next group's m come
  }
}

cublasHandle_t cublas;
cudaMemPool_t pool;  // of our own; it keeps the record: the most bytes that were in use
void make_pool() {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = 0;
  CHECK(cudaMemPoolCreate(&pool, &properties));
}
float* allocate(size_t count) {
  void* p = nullptr;
  CHECK(cudaMallocFromPoolAsync(&p, count * sizeof(float), pool, 0));
  return static_cast<float*>(p);
}
void release(float* p) { CHECK(cudaFreeAsync(p, 0)); }

// C[m, n] = alpha op(A) op(B) + beta C, row-major; ta, tb: transpose. cuBLAS is column-major: it computes C^T.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}

struct Layer {
  float* x;  // its input
  float* h;  // null while h and a are not in memory
  float* a;
};
void forward(Layer& l, int rows, const float* w1) {
  l.h = allocate(rows * hidden);
  l.a = allocate(rows * hidden);
  matmul(false, false, rows, hidden, width, 1, l.x, w1, 0, l.h);  // h = x @ W1
  squared_relu<<<blocks, threads>>>(l.h, l.a, rows * hidden);
  CHECK(cudaGetLastError());
}
void drop(Layer& l) {
  release(l.h);
  release(l.a);
  l.h = nullptr;
}
// Adds the gradients of some rows to g. The loss is |output|^2 / 2, so the output is its own gradient.
void add_gradients(float* input, int rows, const float* w, float* g, bool checkpoints) {
  Layer layer[layers + 1] = {{input, nullptr, nullptr}};  // the last one has only an x: the output
  for (int i = 0; i < layers; ++i) {
    const float* w1 = w + 2 * i * w_count;
    forward(layer[i], rows, w1);
    float* next = allocate(rows * width);
    CHECK(cudaMemcpyAsync(next, layer[i].x, rows * width * sizeof(float), cudaMemcpyDeviceToDevice, 0));
    matmul(false, false, rows, width, hidden, 1, layer[i].a, w1 + w_count, 1, next);  // next x = x + a @ W2
    layer[i + 1].x = next;
    if (checkpoints && i + 1 < layers) drop(layer[i]);  // THE MITIGATION: only x stays
  }
  float* dx = layer[layers].x;
  for (int i = layers - 1; i >= 0; --i) {
    Layer& l = layer[i];
    const float* w1 = w + 2 * i * w_count;
    const float* w2 = w1 + w_count;
    float* g1 = g + 2 * i * w_count;
    float* g2 = g1 + w_count;
    if (!l.h) forward(l, rows, w1);  // THE MITIGATION: h and a once more
    float* d = allocate(rows * hidden);
    matmul(false, true, rows, hidden, width, 1, dx, w2, 0, d);    // d = dx @ W2.T
    matmul(true, false, hidden, width, rows, 1, l.a, dx, 1, g2);  // g2 += a.T @ dx
    squared_relu_backward<<<blocks, threads>>>(l.h, d, rows * hidden);
    CHECK(cudaGetLastError());
    drop(l);
    matmul(false, true, rows, width, hidden, 1, d, w1, 1, dx);   // dx += d @ W1.T
    matmul(true, false, width, hidden, rows, 1, l.x, d, 1, g1);  // g1 += x.T @ d
    release(d);
    if (i > 0) release(l.x);
  }
  release(dx);
}

struct Levers {
  bool checkpoints = false;
  int rows = batch;  // of a micro-batch
  bool eight_bits = false;
};
struct Run {
  uint64_t peak = 0;  // bytes
  Numbers w = Numbers(weights);
};
Run train(const char* what, const Numbers& start, const Numbers& samples, const Levers& levers) {
  Run run;
  CHECK(cudaStreamSynchronize(0));  // what was freed before is gone by now
  uint64_t zero = 0;                // the mark can only be set to 0
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
  float* w = allocate(weights);
  float* g = allocate(weights);
  float* input = allocate(batch * width);
  const size_t state = levers.eight_bits ? weights / 4 + weights / group : weights;  // numbers of 4 bytes
  float* m = allocate(state);  // in 8 bits the codes, then the scales
  CHECK(cudaMemsetAsync(m, 0, state * sizeof(float), 0));
  CHECK(cudaMemcpy(w, start.data(), weights * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(input, samples.data(), batch * width * sizeof(float), cudaMemcpyHostToDevice));
  for (int t = 0; t < steps; ++t) {
    CHECK(cudaMemsetAsync(g, 0, weights * sizeof(float), 0));
    for (int row = 0; row < batch; row += levers.rows)
      add_gradients(input + row * width, levers.rows, w, g, levers.checkpoints);
    if (levers.eight_bits) {
      auto* w4 = reinterpret_cast<Four<float>*>(w);  // the pool's addresses are divisible by 256
      auto* g4 = reinterpret_cast<const Four<float>*>(g);
      sgd_8_bits<<<blocks, group / 4>>>(w4, g4, reinterpret_cast<Four<int8_t>*>(m), m + weights / 4);
    } else {
      sgd<<<blocks, threads>>>(w, g, m);
    }
    CHECK(cudaGetLastError());
  }
  CHECK(cudaMemcpy(run.w.data(), w, weights * sizeof(float), cudaMemcpyDeviceToHost));
  for (float* p : {w, g, input, m}) release(p);
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &run.peak));
  std::printf("%-16s  peak %5.2f MiB\n", what, run.peak / 1048576.0);
  const size_t x_count = levers.rows * width;
  const size_t waiting = levers.checkpoints ? 1 : layers;  // layers whose h and a are in memory at the peak
  const size_t count = 2 * weights + state + batch * width + layers * x_count + 8 * waiting * x_count + 4 * x_count;
  require(run.peak <= count * sizeof(float) + rounding, "the peak by the formula");
  return run;
}
double distance(const Numbers& a, const Numbers& b) {
  double square = 0;
  for (int i = 0; i < weights; ++i) square += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::sqrt(square);
}
float pseudo_random(unsigned i) {  // between -1 and 1
  const unsigned hash = (i + 1) * 2654435761u;
  return (hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  make_pool();
  CHECK(cublasCreate(&cublas));
  Numbers start(weights);
  Numbers samples(batch * width);
  for (unsigned i = 0; i < weights; ++i) start[i] = 0.05f * pseudo_random(i);
  for (unsigned i = 0; i < batch * width; ++i) samples[i] = pseudo_random((1 << 20) + i);
  Levers levers;
  Run textbook;
  if (without) textbook = train("textbook", start, samples, levers);
  if (with) {
    levers.checkpoints = true;
    const Run checkpoints = train("+ checkpoints", start, samples, levers);
    levers.rows = batch / 8;  // THE MITIGATION: micro-batches
    const Run micro = train("+ micro-batches", start, samples, levers);
    levers.eight_bits = true;  // THE MITIGATION: momentum in 8 bits
    const Run all = train("+ 8-bit momentum", start, samples, levers);
    require(micro.peak < 0.6 * checkpoints.peak && all.peak < 0.9 * micro.peak, "each lever saves of what is left");
    if (without) {
      const double way = distance(textbook.w, start);
      const double rounded = distance(micro.w, textbook.w) / way;
      const double eight_bits = distance(all.w, textbook.w) / way;
      std::printf("weights off by 0, %.1e and %.1e of their way\n", rounded, eight_bits);
      require(checkpoints.peak < 0.5 * textbook.peak, "checkpoints save half");
      require(checkpoints.w == textbook.w && rounded < 1e-4 && eight_bits < 0.05, "the same bits, or nearly so");
    }
  }
  CHECK(cublasDestroy(cublas));
  CHECK(cudaMemPoolDestroy(pool));
  std::puts("PASS");
}
