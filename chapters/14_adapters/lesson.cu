// nvcc -o lesson lesson.cu -lcublas
//
// Adapters (LoRA). A trained layer y = W x is to learn something new. Full training keeps four numbers for each weight:
// itself, its gradient, and Adam's two moments. Here W stays as it is. Beside it two thin matrices are trained,
//     y = W x + B (A x)        W [n, n] frozen, A [r, n], B [n, r], r = 8; LoRA has a factor alpha / r too, 1 here
// B begins with zeros, so at first y is what it was. W needs no gradient and no moments, the thin ones have few:
//     full       4 * 4 * n * n                     4096 KiB at n = 512
//     adapter    4 * n * n + 4 * 4 * 2 * r * n     1024 + 128 KiB
// Both need x, y, and the target. In the end B A can be added to W: then the layer costs what it did before.
// The price: two thin products forward and three backward, instead of one for W's gradient; and what differs from W by
// more than a matrix of rank r cannot be learned.
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

constexpr int width = 512;  // n: numbers of x and of y
constexpr int batch = 64;   // samples
constexpr int rank = 8;     // of the adapter
constexpr int steps = 60;
constexpr int blocks = 64;
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

size_t live;     // bytes of all Buffers
size_t peak;     // the maximum of live
struct Buffer {  // on the device, zero
  float* p = nullptr;
  size_t count;
  explicit Buffer(size_t numbers) : count(numbers) {
    if (count == 0) return;
    CHECK(cudaMalloc(&p, bytes()));
    CHECK(cudaMemset(p, 0, bytes()));
    live += bytes();
    peak = std::max(peak, live);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    CHECK(cudaFree(p));  // waits for kernels that still use p
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

__global__ void subtract(float* y, const float* target, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) y[i] -= target[i];
}
// bias_m, bias_v: what the moments still lack after t steps, 1 - beta^t.
__global__ void adam(float* w, const float* g, float* m, float* v, int count, float rate, float bias_m, float bias_v) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float gradient = g[i];
    const float mean = 0.9f * m[i] + 0.1f * gradient;
    const float square = 0.999f * v[i] + 0.001f * gradient * gradient;
    m[i] = mean;
    v[i] = square;
    w[i] -= rate * (mean / bias_m) / (sqrtf(square / bias_v) + 1e-8f);
  }
}

cublasHandle_t cublas;
// C[m, n] = alpha op(A) op(B) + beta C, row-major; ta, tb: transpose. cuBLAS is column-major: it computes C^T.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}

// A matrix that is trained brings its gradient and its moments along.
struct Trained {
  Buffer gradient;
  Buffer m;
  Buffer v;
  explicit Trained(const Buffer& w) : gradient(w.count), m(w.count), v(w.count) {}
  void update(Buffer& w, float rate, int t) {
    const float bias_m = 1 - std::pow(0.9f, float(t));
    const float bias_v = 1 - std::pow(0.999f, float(t));
    adam<<<blocks, threads>>>(w.p, gradient.p, m.p, v.p, int(w.count), rate, bias_m, bias_v);
    CHECK(cudaGetLastError());
  }
};
struct Layer {
  bool adapted;  // whether there is an adapter; of a layer without one a, b and h are empty
  Buffer w;      // [width, width]
  Buffer a;      // [rank, width]
  Buffer b;      // [width, rank]
  Buffer h;      // [batch, rank], x @ a.T
  explicit Layer(int r) : adapted(r > 0), w(width * width), a(r * width), b(width * r), h(batch * r) {}
  void forward(const Buffer& x, Buffer& y) {
    matmul(false, true, batch, width, width, 1, x.p, w.p, 0, y.p);  // y = x @ w.T
    if (!adapted) return;
    matmul(false, true, batch, rank, width, 1, x.p, a.p, 0, h.p);  // h = x @ a.T
    matmul(false, true, batch, width, rank, 1, h.p, b.p, 1, y.p);  // y += h @ b.T
  }
};
struct Data {  // on the host
  Numbers weights = Numbers(width * width);
  Numbers lora_a = Numbers(rank * width);
  Numbers inputs = Numbers(batch * width);
  Numbers target = Numbers(batch * width);  // of a layer that differs from this one by a matrix of rank 1
};
struct Run {
  size_t peak = 0;  // bytes
  Numbers before;   // y before the first step
  Numbers after;    // and after the last one
  Numbers merged;   // and without an adapter, once B A is added to W
  Numbers w;
};
Run train(const Data& data, int r) {  // r: 0 trains W
  peak = live;
  Buffer x(batch * width);
  Buffer y(batch * width);
  Buffer target(batch * width);
  Buffer dh(batch * r);
  x.fill(data.inputs);
  target.fill(data.target);
  Layer layer(r);
  layer.w.fill(data.weights);
  if (layer.adapted) layer.a.fill(data.lora_a);
  std::optional<Trained> of_w;
  std::optional<Trained> of_a;
  std::optional<Trained> of_b;
  if (layer.adapted) {
    of_a.emplace(layer.a);
    of_b.emplace(layer.b);
  } else {
    of_w.emplace(layer.w);
  }
  Run run;
  for (int t = 1; t <= steps; ++t) {
    layer.forward(x, y);
    if (t == 1) run.before = y.read();
    subtract<<<blocks, threads>>>(y.p, target.p, batch * width);  // y becomes dy, the gradient of |y - target|^2 / 2
    CHECK(cudaGetLastError());
    if (layer.adapted) {
      matmul(true, false, width, rank, batch, 1, y.p, layer.h.p, 0, of_b->gradient.p);  // dB = dy.T @ h
      matmul(false, false, batch, rank, width, 1, y.p, layer.b.p, 0, dh.p);             // dh = dy @ B
      matmul(true, false, rank, width, batch, 1, dh.p, x.p, 0, of_a->gradient.p);       // dA = dh.T @ x
      of_a->update(layer.a, 5e-3f, t);
      of_b->update(layer.b, 5e-3f, t);
    } else {
      matmul(true, false, width, width, batch, 1, y.p, x.p, 0, of_w->gradient.p);  // dW = dy.T @ x
      of_w->update(layer.w, 3e-3f, t);
    }
  }
  layer.forward(x, y);
  run.after = y.read();
  run.w = layer.w.read();
  run.peak = peak;
  const size_t trained = r ? 2 * r * width : width * width;  // four numbers for each
  const size_t frozen = r ? width * width : 0;
  require(peak == 4 * (4 * trained + frozen + 3 * batch * width + 2 * batch * r), "the bytes of W, A, B, x, y and h");
  if (layer.adapted) matmul(false, false, width, width, rank, 1, layer.b.p, layer.a.p, 1, layer.w.p);  // W += B @ A
  layer.adapted = false;
  layer.forward(x, y);
  run.merged = y.read();
  return run;
}
double distance(const Numbers& a, const Numbers& b) {
  double square = 0;
  for (size_t i = 0; i < a.size(); ++i) square += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
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
  CHECK(cublasCreate(&cublas));
  Data data;
  for (unsigned i = 0; i < width * width; ++i) data.weights[i] = 0.05f * pseudo_random(i);
  for (unsigned i = 0; i < rank * width; ++i) data.lora_a[i] = 0.05f * pseudo_random((1 << 20) + i);
  for (unsigned i = 0; i < batch * width; ++i) data.inputs[i] = pseudo_random((2 << 20) + i);
  for (int i = 0; i < batch * width; ++i) {
    const unsigned out = i % width;
    const float* x = &data.inputs[i / width * width];
    for (unsigned in = 0; in < width; ++in) {
      const float more = 0.1f * pseudo_random((3 << 20) + out) * pseudo_random((4 << 20) + in);
      data.target[i] += x[in] * (data.weights[out * width + in] + more);
    }
  }
  std::printf("one layer, %d x %d, %d steps     peak   y is off by, of what it was\n", width, width, steps);
  const auto print = [&](const char* what, const Run& run) {
    const double off = distance(run.after, data.target) / distance(run.before, data.target);
    std::printf("  %-28s %5.0f KiB   %.4f\n", what, run.peak / 1024.0, off);
    require(off < 0.1, "a layer that has learned");
  };
  Run full;
  Run light;
  int r = 0;
  if (without) full = train(data, r);
  r = rank;  // THE MITIGATION: W stays as it is, and two thin matrices are trained
  if (with) light = train(data, r);
  if (without) print("full", full);
  if (with) {
    print("adapter of rank 8", light);
    const double off = distance(light.merged, light.after) / distance(light.after, Numbers(batch * width));
    std::printf("  merged into W, y is off by %.1e of y\n", off);
    require(light.w == data.weights, "frozen weights that have not changed, to the bit");
    require(off < 1e-5, "the same y from one matrix, with no adapter beside it");
  }
  if (with && without) {
    require(light.peak * 2.5 < full.peak, "less than 40 % of the bytes");
    require(light.before == full.before && full.w != data.weights, "the same y before the first step, to the bit");
  }
  CHECK(cublasDestroy(cublas));
  std::puts("PASS");
}
