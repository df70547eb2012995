// nvcc -o lesson lesson.cu -lcublas
//
// Adapters (LoRA). A trained layer y = W x is to learn something new. Full training keeps four numbers for each weight:
// itself, its gradient, and Adam's two moments. Here W stays as it is. Beside it two thin matrices are trained,
//     y = W x + B (A x)        W [n, n] frozen, A [r, n], B [n, r], r = 8; LoRA has a factor alpha / r too, 1 here
// B begins with zeros, so at first y is what it was. W needs no gradient and no moments, the thin ones have few:
//     full       4 * 4 * n * n                     4096 KiB at n = 512
//     adapter    4 * n * n + 4 * 4 * 2 * r * n     1024 + 128 KiB
// Both need x, y, and the target. In the end B A can be added to W: then the layer costs what it did before. Each step
// has new samples, and y is judged on others, which no step has seen. The price: two thin products forward and three
// backward, instead of one for W's gradient; and what differs from W by more than rank r cannot be learned.
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

constexpr int width = 512;  // n: numbers of x and of y
constexpr int batch = 64;   // samples
constexpr int rank = 8;     // of the adapter
constexpr int steps = 80;
constexpr int blocks = 64;
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
size_t live;     // bytes of all Buffers
size_t peak;     // the maximum of live
struct Buffer {  // on the device
  float* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t count) : bytes(count * sizeof(float)) {
    if (bytes == 0) return;
    CHECK(cudaMalloc(&p, bytes));
    CHECK(cudaMemset(p, 0, bytes));
    live += bytes;
    peak = std::max(peak, live);
  }
  explicit Buffer(const Numbers& values) : Buffer(values.size()) { fill(values); }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    CHECK(cudaFree(p));  // waits for kernels that still use p
    live -= bytes;
  }
  void fill(const Numbers& from) const { if (bytes) CHECK(cudaMemcpy(p, from.data(), bytes, cudaMemcpyHostToDevice)); }
  Numbers read() const {
    Numbers values(bytes / sizeof(float));
    CHECK(cudaMemcpy(values.data(), p, bytes, cudaMemcpyDeviceToHost));
    return values;
  }
};
__global__ void adam(float* w, const float* g, float* m, float* v, int count) {  // without bias correction
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    m[i] = 0.9f * m[i] + 0.1f * g[i];
    v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
    w[i] -= 1e-3f * m[i] / (sqrtf(v[i]) + 1e-8f);  // a learning rate of 1e-3, both ways
  }
}
struct Matrix {  // one that is trained brings its gradient and its moments along
  Buffer w;
  Buffer g;
  Buffer m;
  Buffer v;
  Matrix(const Numbers& start, size_t of_each) : w(start), g(of_each), m(of_each), v(of_each) {}  // 0: it is frozen
  void update() {
    adam<<<blocks, threads>>>(w.p, g.p, m.p, v.p, int(w.bytes / sizeof(float)));
    CHECK(cudaGetLastError());
  }
};
cublasHandle_t cublas;
// C[m, n] = alpha op(A) op(B) + beta C, row-major. cuBLAS is column-major: C^T = op(B)^T op(A)^T, so B comes first.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}
double norm(const Numbers& v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); }
Numbers numbers(int count, float scale) {  // pseudo-random, between -scale and scale
  static std::minstd_rand random;
  Numbers values(count);
  for (float& value : values) value = scale * (2.0f * random() / random.max() - 1);
  return values;
}
const Numbers unseen = numbers(batch * width, 1);  // samples for judging only
struct Run {
  size_t peak = 0;  // bytes, without the task's
  Numbers before;   // y - target of the unseen samples, before the first step
  Numbers after;    // after the last one
  Numbers merged;   // and without an adapter, once B A is added to W
  Numbers w;
};
Run train(const char* what, const Buffer& task, const Numbers& start, int r) {
  peak = live;
  bool adapted = r > 0;  // otherwise W is trained, and a, b, h and dh are empty
  const Buffer x(batch * width);
  const Buffer target(batch * width);
  const Buffer dy(batch * width);
  const Buffer h(batch * r);  // x @ A.T
  const Buffer dh(batch * r);
  Matrix w(start, adapted ? 0 : width * width);    // [width, width]
  Matrix a(numbers(r * width, 0.05f), r * width);  // [r, width]
  Matrix b(Numbers(width * r), width * r);         // [width, r], zeros
  const auto forward = [&](const Numbers& samples) {  // dy = y - target, the gradient of |y - target|^2 / 2
    x.fill(samples);
    matmul(false, true, batch, width, width, 1, x.p, task.p, 0, target.p);  // target = x @ wanted.T
    CHECK(cudaMemcpyAsync(dy.p, target.p, dy.bytes, cudaMemcpyDeviceToDevice, 0));
    matmul(false, true, batch, width, width, 1, x.p, w.w.p, -1, dy.p);  // x @ W.T - dy: what is there is subtracted
    if (!adapted) return;
    matmul(false, true, batch, r, width, 1, x.p, a.w.p, 0, h.p);   // h = x @ A.T
    matmul(false, true, batch, width, r, 1, h.p, b.w.p, 1, dy.p);  // dy += h @ B.T
  };
  Run run;
  forward(unseen);
  run.before = dy.read();
  for (int step = 0; step < steps; ++step) {
    forward(numbers(batch * width, 1));
    if (adapted) {
      matmul(true, false, width, r, batch, 1, dy.p, h.p, 0, b.g.p);    // dB = dy.T @ h
      matmul(false, false, batch, r, width, 1, dy.p, b.w.p, 0, dh.p);  // dh = dy @ B
      matmul(true, false, r, width, batch, 1, dh.p, x.p, 0, a.g.p);    // dA = dh.T @ x
      a.update();
      b.update();
    } else {
      matmul(true, false, width, width, batch, 1, dy.p, x.p, 0, w.g.p);  // dW = dy.T @ x
      w.update();
    }
  }
  forward(unseen);
  run.after = dy.read();
  run.w = w.w.read();
  run.peak = peak - task.bytes;
  const size_t of_weights = adapted ? width * width + 4 * 2 * r * width : 4 * width * width;
  require(run.peak == 4 * (of_weights + 3 * batch * width + 2 * batch * r), "W, A, B, x, y, target, h and dh");
  if (adapted) matmul(false, false, width, width, r, 1, b.w.p, a.w.p, 1, w.w.p);  // W += B @ A
  adapted = false;  // from here on W alone
  forward(unseen);
  run.merged = dy.read();
  const double off = norm(run.after) / norm(run.before);
  std::printf("  %-28s %5.0f KiB   %.4f\n", what, run.peak / 1024.0, off);
  require(off < 0.1, "a layer that has learned");
  return run;
}
int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  const Numbers start = numbers(width * width, 0.05f);
  Numbers wanted = start;  // what is to be learned differs by a column times a row, a matrix of rank 1
  for (int i = 0; i < width * width; ++i) wanted[i] += 0.1f * std::sin(i / width) * std::cos(i % width);
  const Buffer task(wanted);  // where targets come from; in training they come with the data
  std::printf("one layer, %d x %d, %d steps    peak   new y is off by, of what it was\n", width, width, steps);
  Run full;
  Run light;
  if (without) full = train("full", task, start, 0);
  if (with) {
    light = train("adapter of rank 8", task, start, rank);  // THE MITIGATION: W stays as it is
    for (size_t i = 0; i < light.merged.size(); ++i) light.merged[i] -= light.after[i];
    const double off = norm(light.merged) / norm(light.before);
    std::printf("  merged into W, y changes by %.1e\n", off);
    require(light.w == start, "frozen weights that have not changed, to the bit");
    require(off < 1e-5, "the same y from one matrix, with no adapter beside it");
  }
  if (with && without) {
    require(light.peak * 2.5 < full.peak, "less than 40 % of the bytes");
    require(light.before == full.before && full.w != start, "the same y before the first step, to the bit");
  }
  CHECK(cublasDestroy(cublas));
  std::puts("PASS");
}
