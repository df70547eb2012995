// nvcc -o lesson lesson.cu -lcublas
//
// Three levers in one training step, one after the other. A layer: h = x W1, a = max(h, 0)^2, next x = x + a W2.
//     checkpoints     keep each layer's x; compute its h and a again before its backward pass
//     micro-batches   an eighth of the rows at a time; gradients add up
//     8-bit momentum  the optimizer's m is a byte, and 256 share a scale
// Bytes, with n weights, L layers, and u = 4 * rows * width for an x, 4 u for an h, an a, or the gradient of an h:
//     textbook      weights, gradients, m  12 n      the input u   activations (L + 1) u + 8 u L + 4 u
//     all three                             9.02 n   the same      activations (L + 1) u + 8 u + 4 u, of rows / 8
// Savings do not multiply: what one lever has taken is not there for the next one.
// The price of a step: seven products for a layer instead of six, small products, and eight bits round.
#include <cublas_v2.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
constexpr int layers = 8, batch = 1024, width = 64, hidden = 4 * width, steps = 6, blocks = 32, threads = 256;
constexpr int w_count = width * hidden, n = 2 * layers * w_count, group = 256;  // group: weights that share a scale
constexpr float momentum = 0.9f, rate = 2e-5f;
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require(int(call) == 0, #call)
__global__ void squared_relu(const float* h, float* a, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    a[i] = fmaxf(h[i], 0) * fmaxf(h[i], 0);
}
__global__ void squared_relu_backward(const float* h, float* d, int count) {  // d: a's gradient becomes h's
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    d[i] *= 2 * fmaxf(h[i], 0);
}
__global__ void sgd(float* w, const float* g, float* m) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    m[i] = momentum * m[i] + g[i];
    w[i] -= rate * m[i];
  }
}
// What a thread reads at once: 16 bytes of weights or gradients, or 4 bytes of codes.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T value[4];
};
struct Group {  // m in eight bits: m = scale * code / 127
  float scale;
  Four<int8_t> codes[group / 4];
};
// A block takes a group, a thread four weights. The new m wait in shared memory until the largest of them is known.
__global__ void sgd_8_bits(float* w, const float* g, Group* groups) {
  __shared__ float m[group];
  __shared__ float largest[group / 4];
  for (int b = blockIdx.x; b < n / group; b += gridDim.x) {
    Four<float>* weights = reinterpret_cast<Four<float>*>(w + b * group);  // a group begins at a multiple of 16 bytes
    const Four<float>* gradients = reinterpret_cast<const Four<float>*>(g + b * group);
    const float old_scale = groups[b].scale;
    for (int k = threadIdx.x; k < group / 4; k += blockDim.x) {
      Four<float> weight = weights[k];
      const Four<float> gradient = gradients[k];
      const Four<int8_t> code = groups[b].codes[k];
      largest[k] = 0;
      for (int j = 0; j < 4; ++j) {
        const float now = momentum * (old_scale * code.value[j] / 127) + gradient.value[j];
        weight.value[j] -= rate * now;
        m[4 * k + j] = now;
        largest[k] = fmaxf(largest[k], fabsf(now));
      }
      weights[k] = weight;
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
      groups[b].codes[k] = code;
    }
    if (threadIdx.x == 0) groups[b].scale = scale;
    __syncthreads();  // before the next group's m come
  }
}
cublasHandle_t cublas;
cudaMemPool_t pool;  // of the device. It keeps the record: the most bytes that were in use
template <class T = float>
T* allocate(size_t count) {  // zeros
  T* p = nullptr;
  CHECK(cudaMallocAsync(&p, count * sizeof(T), 0));
  CHECK(cudaMemsetAsync(p, 0, count * sizeof(T), 0));
  return p;
}
void release(void* p) { CHECK(cudaFreeAsync(p, 0)); }
void copy(float* to, const float* from, int count) { CHECK(cudaMemcpy(to, from, count * 4, cudaMemcpyDefault)); }
// C[m, n] += op(A) op(B), row by row; ta, tb: transpose. cuBLAS stores by columns: it computes C^T.
void multiply(bool ta, bool tb, int m, int n, int k, const float* A, const float* B, float* C) {
  const float one = 1;
  const auto a = ta ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto b = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
  CHECK(cublasSgemm(cublas, b, a, n, m, k, &one, B, tb ? k : n, A, ta ? m : k, &one, C, n));
}
void add_gradients(const float* input, int rows, const float* w, float* g, bool checkpoints) {
  float* x[layers + 1] = {};
  float* h[layers] = {};
  float* a[layers] = {};
  const auto forward = [&](int l) {
    h[l] = allocate(rows * hidden);
    a[l] = allocate(rows * hidden);
    multiply(false, false, rows, hidden, width, x[l], w + 2 * l * w_count, h[l]);
    squared_relu<<<blocks, threads>>>(h[l], a[l], rows * hidden);
  };
  const auto drop = [&](int l) {
    release(h[l]);
    release(a[l]);
    h[l] = nullptr;
  };
  x[0] = allocate(rows * width);
  copy(x[0], input, rows * width);
  for (int l = 0; l < layers; ++l) {
    forward(l);
    x[l + 1] = allocate(rows * width);
    copy(x[l + 1], x[l], rows * width);
    multiply(false, false, rows, width, hidden, a[l], w + (2 * l + 1) * w_count, x[l + 1]);
    if (checkpoints) drop(l);  // THE MITIGATION: only x stays
  }
  float* dx = x[layers];  // the loss is |output|^2 / 2, so the output is its own gradient
  for (int l = layers - 1; l >= 0; --l) {
    if (!h[l]) forward(l);  // THE MITIGATION: h and a once more
    const int first = 2 * l * w_count;   // where W1 and its gradient begin
    const int second = first + w_count;  // where W2 and its gradient begin
    float* d = allocate(rows * hidden);
    multiply(false, true, rows, hidden, width, dx, w + second, d);
    multiply(true, false, hidden, width, rows, a[l], dx, g + second);
    squared_relu_backward<<<blocks, threads>>>(h[l], d, rows * hidden);
    drop(l);
    multiply(false, true, rows, width, hidden, d, w + first, dx);
    multiply(true, false, width, hidden, rows, x[l], d, g + first);
    release(d);
    release(x[l]);
  }
  release(dx);
}
struct Run {
  uint64_t peak = 0;
  Numbers w = Numbers(n);
};
template <class State>
Run train(const char* what, const Numbers& start, const Numbers& samples, bool checkpoints, int rows,
          void (*optimizer)(float*, const float*, State*), int threads_of_it, int states) {
  Run run;
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &run.peak));  // starts the record anew
  float* w = allocate(n);
  float* g = allocate(n);
  float* input = allocate(batch * width);
  State* state = allocate<State>(states);
  copy(w, start.data(), n);
  copy(input, samples.data(), batch * width);
  for (int t = 0; t < steps; ++t) {
    CHECK(cudaMemsetAsync(g, 0, n * sizeof(float), 0));
    for (int row = 0; row < batch; row += rows) add_gradients(input + row * width, rows, w, g, checkpoints);
    optimizer<<<blocks, threads_of_it>>>(w, g, state);
  }
  CHECK(cudaGetLastError());
  copy(run.w.data(), w, n);
  for (void* p : std::initializer_list<void*>{w, g, input, state}) release(p);
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &run.peak));
  std::printf("%-16s  peak %5.2f MiB\n", what, run.peak / 1048576.0);
  return run;
}
double distance(const Numbers& a, const Numbers& b) {
  double square = 0;
  for (int i = 0; i < n; ++i) square += std::pow(a[i] - b[i], 2);
  return std::sqrt(square);
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cublasCreate(&cublas));
  Numbers start(n);
  Numbers samples(batch * width);
  for (int i = 0; i < n; ++i) start[i] = (int((i + 1) * 2654435761u >> 16 & 1023) - 511) / 10240.0f;
  for (int i = 0; i < batch * width; ++i) samples[i] = (int((i + 1) * 2246822519u >> 16 & 1023) - 511) / 512.0f;
  Run textbook;
  Run checkpoints;
  Run micro;
  Run all;
  if (without) textbook = train("textbook", start, samples, false, batch, sgd, threads, n);
  if (with) checkpoints = train("+ checkpoints", start, samples, true, batch, sgd, threads, n);
  if (with) micro = train("+ micro-batches", start, samples, true, batch / 8, sgd, threads, n);
  if (with) all = train("+ 8-bit momentum", start, samples, true, batch / 8, sgd_8_bits, group / 4, n / group);
  CHECK(cublasDestroy(cublas));
  if (with && without) {
    const double way = distance(textbook.w, start);
    const double rounding = distance(micro.w, textbook.w) / way;
    const double eight_bits = distance(all.w, textbook.w) / way;
    std::printf("weights off by 0, %.1e and %.1e of their way\n", rounding, eight_bits);
    require(checkpoints.peak < 0.5 * textbook.peak, "checkpoints save half");
    require(micro.peak < 0.6 * checkpoints.peak && all.peak < 0.9 * micro.peak, "each lever saves of what is left");
    require(checkpoints.w == textbook.w && rounding < 1e-4 && eight_bits < 0.05, "the same bits, or nearly so");
  }
  std::puts("PASS");
}
