// nvcc -o lesson lesson.cu -lcublas
//
// Adapters (LoRA). A trained layer y = W x is to learn something new. Full training keeps four numbers for each weight:
// itself, its gradient, and Adam's two moments. Here W stays as it is. Beside it two thin matrices are trained,
//     y = W x + B (A x)        W [n, n] frozen, A [r, n], B [n, r], r = 8
// B begins with zeros, so at first y is what it was. W needs no gradient and no moments, the thin ones have few:
//     full       4 * 4 * n * n                     4096 KiB at n = 512
//     adapter    4 * n * n + 4 * 4 * 2 * r * n     1024 + 256 KiB
// Both need x, y, and what y should be. In the end B A can be added to W: then the layer costs what it did before.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
constexpr int n = 512, batch = 64, rank = 8, steps = 60, blocks = 64, threads = 256;
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require((call) == 0, #call)

size_t live;  // bytes of all Buffers
size_t peak;  // at most
struct Buffer {     // on the device
  float* p = nullptr;
  const size_t count;
  explicit Buffer(size_t n) : count(n) {
    CHECK(cudaMalloc(&p, bytes()));
    CHECK(cudaMemset(p, 0, bytes()));
    live += bytes();
    peak = std::max(peak, live);
  }
  ~Buffer() {
    CHECK(cudaFree(p));
    live -= bytes();
  }
  size_t bytes() const { return count * sizeof(float); }
  void fill(const Numbers& from) { CHECK(cudaMemcpy(p, from.data(), bytes(), cudaMemcpyHostToDevice)); }
  Numbers read() const {
    Numbers values(count);
    CHECK(cudaMemcpy(values.data(), p, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }
};

// Threads side by side read numbers side by side.
__global__ void subtract(float* y, const float* target, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) y[i] -= target[i];
}
__global__ void adam(float* w, const float* g, float* m, float* v, int count, float rate, int t) {
  const float m_scale = 1 / (1 - powf(0.9f, t));
  const float v_scale = 1 / (1 - powf(0.999f, t));
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    m[i] = 0.9f * m[i] + 0.1f * g[i];
    v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
    w[i] -= rate * m[i] * m_scale / (sqrtf(v[i] * v_scale) + 1e-8f);
  }
}

cublasHandle_t cublas;
// C [rows, columns] = A B + beta C, all row by row; with T that factor lies the other way round. cuBLAS counts by
// columns, so it gets the factors in the other order.
constexpr auto N = CUBLAS_OP_N, T = CUBLAS_OP_T;
void product(const Buffer& a, cublasOperation_t of_a, const Buffer& b, cublasOperation_t of_b, Buffer& c, int rows,
             int columns, int inner, float beta) {
  const float one = 1;
  CHECK(cublasSgemm(cublas, of_b, of_a, columns, rows, inner, &one, b.p, of_b == T ? inner : columns, a.p,
                    of_a == T ? rows : inner, &beta, c.p, columns));
}

// A matrix that is trained: its gradient and its moments come with it.
struct Trained {
  Buffer gradient;
  Buffer m;
  Buffer v;
  explicit Trained(const Buffer& w) : gradient(w.count), m(w.count), v(w.count) {}
  void update(Buffer& w, float rate, int t) {
    adam<<<blocks, threads>>>(w.p, gradient.p, m.p, v.p, int(w.count), rate, t);
    CHECK(cudaGetLastError());
  }
};
struct Layer {
  int r;              // 0: W is trained
  Buffer w;
  Buffer a;
  Buffer b;
  Buffer h;  // [batch, r], A x of every sample
  explicit Layer(int r) : r(r), w(n * n), a(r * n), b(n * r), h(batch * r) {}
  void forward(const Buffer& x, Buffer& y) {
    product(x, N, w, T, y, batch, n, n, 0);
    if (r == 0) return;
    product(x, N, a, T, h, batch, r, n, 0);
    product(h, N, b, T, y, batch, n, r, 1);
  }
};
struct Run {
  size_t peak;  // bytes
  Numbers first;
  Numbers last;
  Numbers merged;
  Numbers w;
};
Run train(int r, const Numbers& weights, const Numbers& thin, const Numbers& inputs, const Numbers& wanted) {
  peak = live;
  Buffer x(inputs.size());
  Buffer target(wanted.size());
  Buffer y(wanted.size());
  Buffer dh(batch * r);
  x.fill(inputs);
  target.fill(wanted);
  Layer layer(r);
  layer.w.fill(weights);
  if (r) layer.a.fill(thin);
  Trained first(r ? layer.a : layer.w);
  Trained second(layer.b);
  const float rate = r ? 5e-3f : 3e-3f;  // of fewer numbers each has more to do
  Run run;
  for (int t = 1; t <= steps; ++t) {
    layer.forward(x, y);
    if (t == 1) run.first = y.read();
    subtract<<<blocks, threads>>>(y.p, target.p, batch * n);  // y becomes the gradient of |y - target|^2 / 2
    if (r) {  // the gradients of B, of A x, and of A
      product(y, T, layer.h, N, second.gradient, n, r, batch, 0);
      product(y, N, layer.b, N, dh, batch, r, n, 0);
      product(dh, T, x, N, first.gradient, r, n, batch, 0);
      first.update(layer.a, rate, t);
      second.update(layer.b, rate, t);
    } else {
      product(y, T, x, N, first.gradient, n, n, batch, 0);
      first.update(layer.w, rate, t);
    }
  }
  layer.forward(x, y);
  run.last = y.read();
  run.w = layer.w.read();
  run.peak = peak;
  if (r) product(layer.b, N, layer.a, N, layer.w, n, n, r, 1);  // W += B A
  layer.r = 0;
  layer.forward(x, y);
  run.merged = y.read();
  return run;
}
double distance(const Numbers& a, const Numbers& b) {
  double square = 0;
  for (size_t i = 0; i < a.size(); ++i) square += std::pow(double(a[i]) - b[i], 2);
  return std::sqrt(square);
}
float some(size_t i) { return (int((i + 1) * 2654435761u >> 16 & 1023) - 511) / 512.0f; }  // between -1 and 1

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  Numbers weights(n * n);
  Numbers thin(rank * n);
  Numbers inputs(batch * n);
  Numbers wanted(batch * n);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.05f * some(i);
  for (size_t i = 0; i < thin.size(); ++i) thin[i] = 0.05f * some(i + 1000003);
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = some(i + 2000003);
  for (int row = 0; row < batch; ++row)  // what a layer gives that differs from this one by a matrix of rank 1
    for (int o = 0; o < n; ++o) {
      float& sum = wanted[row * n + o];
      for (int i = 0; i < n; ++i) sum += inputs[row * n + i] * (weights[o * n + i] + 0.1f * some(o + 7) * some(i + 77));
    }
  std::printf("one layer, %d x %d, %d steps     peak   y is off by, of what it was\n", n, n, steps);
  const auto print = [&](const char* what, const Run& run) {
    const double off = distance(run.last, wanted) / distance(run.first, wanted);
    std::printf("  %-28s %5.0f KiB   %.4f\n", what, run.peak / 1024.0, off);
    require(off < 0.1, "a layer that has learned");
  };
  Run full;
  Run light;
  int r = 0;
  if (without) full = train(r, weights, thin, inputs, wanted);
  r = rank;  // THE MITIGATION: W stays as it is, and two thin matrices are trained
  if (with) light = train(r, weights, thin, inputs, wanted);
  if (without) print("full", full);
  if (with) print("adapter of rank 8", light);
  if (with && without) {
    const double off = distance(light.merged, light.last) / distance(light.last, Numbers(light.last.size()));
    std::printf("  merged into W, y is off by %.1e of y\n", off);
    require(light.peak * 2.5 < full.peak, "less than 40 % of the bytes");
    require(light.first == full.first, "the same y before the first step, to the bit");
    require(light.w == weights && full.w != weights, "frozen weights that have not changed");
    require(off < 1e-5, "the same y from one matrix, with no adapter beside it");
  }
  CHECK(cublasDestroy(cublas));
  std::puts("PASS");
}
