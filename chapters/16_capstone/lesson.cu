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
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int layers = 8, batch = 1024, width = 64, hidden = 4 * width, steps = 6, blocks = 32, threads = 128;
constexpr int w_count = width * hidden, n = 2 * layers * w_count, group = 256;  // weights that share a scale
using Numbers = std::vector<float>;                                             // on the host

void require(bool good, const char* what) {
  if (!good) std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError())), std::exit(1);
}
#define CHECK(call) require(int(call) == 0, #call)

__global__ void squared_relu(const float* h, float* y, bool backward, int count) {  // backward: y is a gradient
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float r = fmaxf(h[i], 0);
    y[i] = r * (backward ? 2 * y[i] : r);
  }
}
// SGD with momentum, m = 0.9 m + g, a thread for each group. Where q is, it has m in bytes: m = scale * q / 127.
__global__ void update(float* w, const float* g, float* m, int8_t* q, float* scales) {
  for (int b = blockIdx.x * blockDim.x + threadIdx.x; b < n / group; b += gridDim.x * blockDim.x) {
    const float scale = scales[b];
    const auto next = [=](int i) { return 0.9f * (q ? scale * q[i] / 127 : m[i]) + g[i]; };
    float most = 1e-30f;
    for (int i = b * group; i < (b + 1) * group; ++i) most = fmaxf(most, fabsf(next(i)));
    for (int i = b * group; i < (b + 1) * group; ++i) {
      const float now = next(i);
      w[i] -= 2e-5f * now;
      if (q) q[i] = int8_t(rintf(127 * now / most));
      if (m) m[i] = now;
    }
    scales[b] = most;
  }
}

cublasHandle_t cublas;
size_t live, peak;  // bytes of all Buffers, now and at most
template <class T = float>
struct Buffer {  // on the device, zero
  T* p = nullptr;
  size_t bytes = 0;
  explicit Buffer(size_t count = 0) { make(count); }
  void make(size_t count) {
    if (count > 0) CHECK(cudaMalloc(&p, bytes = count * sizeof(T))), CHECK(cudaMemset(p, 0, bytes));
    peak = std::max(peak, live += bytes);
  }
  void copy(const void* from) { CHECK(cudaMemcpy(p, from, bytes, cudaMemcpyDefault)); }
  void drop() { CHECK(cudaFree(p)), p = nullptr, live -= bytes, bytes = 0; }
  ~Buffer() { drop(); }
};

// C[m, n] += op(A) op(B), row by row; ta, tb: transpose. cuBLAS stores by columns: it computes C^T.
void multiply(bool ta, bool tb, int m, int n, int k, const float* A, const float* B, float* C) {
  const float one = 1;
  const auto a = ta ? CUBLAS_OP_T : CUBLAS_OP_N, b = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
  CHECK(cublasSgemm(cublas, b, a, n, m, k, &one, B, tb ? k : n, A, ta ? m : k, &one, C, n));
}

void add_gradients(const float* input, int rows, const float* w, float* g, bool checkpoints) {
  Buffer<> x[layers + 1], h[layers], a[layers], d;
  x[0].make(rows * width), x[0].copy(input);
  const auto forward = [&](int l) {
    h[l].make(rows * hidden), a[l].make(rows * hidden);
    multiply(false, false, rows, hidden, width, x[l].p, w + 2 * l * w_count, h[l].p);
    squared_relu<<<blocks, threads>>>(h[l].p, a[l].p, false, rows * hidden);
  };
  for (int l = 0; l < layers; ++l) {
    forward(l), x[l + 1].make(rows * width), x[l + 1].copy(x[l].p);
    multiply(false, false, rows, width, hidden, a[l].p, w + (2 * l + 1) * w_count, x[l + 1].p);
    if (checkpoints) h[l].drop(), a[l].drop();  // THE MITIGATION: only x stays
  }
  float* dx = x[layers].p;  // the loss is |output|^2 / 2, so the output is its own gradient
  for (int l = layers - 1; l >= 0; --l, d.drop()) {
    if (!h[l].p) forward(l);  // THE MITIGATION: h and a once more
    d.make(rows * hidden), multiply(false, true, rows, hidden, width, dx, w + (2 * l + 1) * w_count, d.p);
    multiply(true, false, hidden, width, rows, a[l].p, dx, g + (2 * l + 1) * w_count);
    squared_relu<<<blocks, threads>>>(h[l].p, d.p, true, rows * hidden), h[l].drop(), a[l].drop();
    multiply(false, true, rows, width, hidden, d.p, w + 2 * l * w_count, dx);
    multiply(true, false, width, hidden, rows, x[l].p, d.p, g + 2 * l * w_count), x[l].drop();
  }
}
Numbers train(const Numbers& start, const Numbers& rows_of, bool checkpoints, int micro_batches, bool bytes) {
  peak = live;
  Buffer<> w(n), g(n), input(batch * width), m(bytes ? 0 : n), scales(n / group);
  Buffer<int8_t> q(bytes ? n : 0);
  w.copy(start.data()), input.copy(rows_of.data());
  for (int t = 0, rows = batch / micro_batches; t < steps; ++t) {
    CHECK(cudaMemset(g.p, 0, g.bytes));
    for (int row = 0; row < batch; row += rows) add_gradients(input.p + row * width, rows, w.p, g.p, checkpoints);
    update<<<blocks, threads>>>(w.p, g.p, m.p, q.p, scales.p);
  }
  Numbers result(n);
  return CHECK(cudaMemcpy(result.data(), w.p, w.bytes, cudaMemcpyDefault)), result;
}

int main() {
  CHECK(cublasCreate(&cublas));
  Numbers start(n), input(batch * width), w[4];
  for (int i = 0; i < n; ++i) start[i] = (int((i + 1) * 2654435761u >> 16 & 1023) - 511) / 10240.0f;
  for (int i = 0; i < batch * width; ++i) input[i] = (int((i + 1) * 2246822519u >> 16 & 1023) - 511) / 512.0f;
  double peaks[4], off[4] = {}, way = 0;
  for (int k = 0; k < 4; ++k) {
    w[k] = train(start, input, k > 0, k > 1 ? 8 : 1, k > 2), peaks[k] = peak;
    for (int i = 0; i < n; ++i) off[k] += pow(w[k][i] - w[0][i], 2), way += k ? 0 : pow(w[0][i] - start[i], 2);
    const char* what[] = {"textbook", "+ checkpoints", "+ micro-batches", "+ 8-bit momentum"};
    off[k] = sqrt(off[k] / way);
    std::printf("%-16s  peak %5.2f MiB  weights off by %.1e of their way\n", what[k], peaks[k] / 1048576, off[k]);
  }
  CHECK(cublasDestroy(cublas));
  require(peaks[1] < 0.5 * peaks[0] && peaks[2] < 0.6 * peaks[1] && peaks[3] < 0.9 * peaks[2], "each lever saves");
  require(w[1] == w[0] && off[2] < 1e-4 && off[3] < 0.05, "the same bits, the same within rounding, nearly the same");
  std::puts("PASS");
}
