// nvcc -o lesson lesson.cu
//
// The optimizer's memory. For each weight Adam remembers two numbers: m, the mean of its gradients, and v, that of
// their squares. In FP32 these are 8 bytes, twice the weight. Eight bits are enough, if a group of 256 shares a scale:
//     absmax = the largest |m| of 256      m = absmax * (q / 127)^3, q an integer from -127 to 127
// The cube makes these values dense near 0, where most moments are: the smallest is half a millionth of the largest.
// Bytes of both moments of n weights:
//     FP32      8 n                 2048 KiB for n = 262144
//     8 bits    2 n + 8 n / 256      520 KiB, 74.6 % less
// A moment is off by 1 % near the largest, up to 12 % at a thousandth of it. Here the weights still reach the target.
// The price of a step: two cubes and two cube roots for each weight. It moves a quarter of the moments' bytes.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

constexpr int n = 262144;   // weights
constexpr int group = 256;  // moments that share a scale
constexpr int steps = 30;
constexpr int blocks = 32;
constexpr int threads = 256;
constexpr float lr = 0.01f;
constexpr float beta1 = 0.9f;
constexpr float beta2 = 0.999f;
constexpr float eps = 1e-8f;
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == cudaSuccess, cudaGetErrorString(code), call); }
#define CHECK(call) check(call, #call)

struct Pair {  // a number for each moment: its value, its scale, or its bias correction
  float m;
  float v;
};
// Adam of one weight, which is to become `target`: its gradient is how far it is from that. `bias` is the share of a
// full mean that t steps have built up, 1 - beta^t.
__device__ Pair adam(float* w, float target, Pair old, Pair bias) {
  const float g = *w - target;
  const float m = old.m + (1 - beta1) * (g - old.m);
  const float v = old.v + (1 - beta2) * (g * g - old.v);
  *w -= lr * (m / bias.m) / (sqrtf(v / bias.v) + eps);
  return {m, v};
}
__global__ void step_fp32(float* w, const float* target, float* m, float* v, Pair bias) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const Pair next = adam(&w[i], target[i], {m[i], v[i]}, bias);
    m[i] = next.m;
    v[i] = next.v;
  }
}
__device__ Pair larger(Pair a, Pair b) { return {fmaxf(a.m, b.m), fmaxf(a.v, b.v)}; }
__device__ float decoded(int8_t q, float scale) {
  const float root = q / 127.0f;
  return scale * root * root * root;
}
__device__ int8_t encoded(float moment, float scale) {  // the nearest code; a scale of 0 is that of zeros
  return int8_t(scale > 0 ? rintf(127 * cbrtf(moment / scale)) : 0);
}
// A block takes a group at a time, with a thread for each weight. The new moments wait in shared memory until the
// largest of them is known. v is never negative: it uses half of the codes.
__global__ void step_8_bits(float* w, const float* target, int8_t* m, int8_t* v, Pair* absmax, Pair bias) {
  __shared__ Pair next[group];
  __shared__ Pair largest[group];
  for (int b = blockIdx.x; b < n / group; b += gridDim.x) {
    const Pair scale = absmax[b];
    for (int k = threadIdx.x; k < group; k += blockDim.x) {
      const int i = b * group + k;
      next[k] = adam(&w[i], target[i], {decoded(m[i], scale.m), decoded(v[i], scale.v)}, bias);
      largest[k] = {fabsf(next[k].m), next[k].v};
    }
    for (int half = group / 2; half > 0; half /= 2) {  // the upper half goes into the lower half
      __syncthreads();
      for (int k = threadIdx.x; k < half; k += blockDim.x) largest[k] = larger(largest[k], largest[k + half]);
    }
    __syncthreads();  // the largest of all is in largest[0]
    for (int k = threadIdx.x; k < group; k += blockDim.x) {
      m[b * group + k] = encoded(next[k].m, largest[0].m);
      v[b * group + k] = encoded(next[k].v, largest[0].v);
    }
    if (threadIdx.x == 0) absmax[b] = largest[0];
    __syncthreads();  // all have read largest[0], before the next group's moments come
  }
}

size_t live;  // bytes of all Buffers
size_t peak;  // the maximum of live
template <class T>
struct Buffer {  // on the device, zero
  T* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t count) : bytes(count * sizeof(T)) {
    CHECK(cudaMalloc(&p, bytes));
    CHECK(cudaMemset(p, 0, bytes));
    live += bytes;
    peak = std::max(peak, live);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    CHECK(cudaFree(p));
    live -= bytes;
  }
  void fill(const Numbers& from) { CHECK(cudaMemcpy(p, from.data(), bytes, cudaMemcpyHostToDevice)); }
  void read(Numbers& to) const { CHECK(cudaMemcpy(to.data(), p, bytes, cudaMemcpyDeviceToHost)); }
};
struct Run {
  size_t state = 0;  // bytes of the moments
  size_t peak = 0;   // bytes of everything
  Numbers w = Numbers(n);
};
Pair bias_after(int t) { return {1 - std::pow(beta1, float(t)), 1 - std::pow(beta2, float(t))}; }
Run in_fp32(const Buffer<float>& target) {
  peak = live;
  Buffer<float> w(n);
  Buffer<float> m(n);
  Buffer<float> v(n);
  for (int t = 1; t <= steps; ++t) step_fp32<<<blocks, threads>>>(w.p, target.p, m.p, v.p, bias_after(t));
  CHECK(cudaGetLastError());
  Run run{m.bytes + v.bytes, peak};
  require(run.state == 8 * size_t(n), "8 bytes of moments for each weight");
  w.read(run.w);
  return run;
}
Run in_8_bits(const Buffer<float>& target) {
  peak = live;
  Buffer<float> w(n);
  Buffer<int8_t> m(n);
  Buffer<int8_t> v(n);
  Buffer<Pair> absmax(n / group);
  for (int t = 1; t <= steps; ++t) step_8_bits<<<blocks, threads>>>(w.p, target.p, m.p, v.p, absmax.p, bias_after(t));
  CHECK(cudaGetLastError());
  Run run{m.bytes + v.bytes + absmax.bytes, peak};
  require(run.state == 2 * size_t(n) + 8 * size_t(n) / group, "2 bytes for each weight, and 8 for each group");
  w.read(run.w);
  return run;
}
double distance(const Numbers& a, const Numbers& b) {
  double square = 0;
  for (int i = 0; i < n; ++i) square += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::sqrt(square);
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  Numbers wanted(n);
  std::minstd_rand random;
  for (float& weight : wanted) weight = (2.0f * random() / random.max() - 1) / 8;  // between -1/8 and 1/8
  Buffer<float> target(n);
  target.fill(wanted);
  std::printf("%d weights, %d steps   moments       peak   distance to the target, of 1\n", n, steps);
  const double start = distance(wanted, Numbers(n));
  const auto print = [&](const char* what, const Run& run) {
    const double off = distance(run.w, wanted) / start;
    std::printf("  %-20s %8.0f KiB %6.0f KiB   %.4f\n", what, run.state / 1024., run.peak / 1024., off);
    require(off < 0.2, "weights near to the target");
  };
  Run full;
  Run light;
  if (without) full = in_fp32(target);
  if (without) print("FP32", full);
  if (with) light = in_8_bits(target);  // THE MITIGATION: a byte for each moment, and a scale for 256
  if (with) print("8 bits", light);
  if (with && without) {
    require(light.state * 3.9 < full.state && light.peak < 0.7 * full.peak, "a quarter of the bytes of the moments");
    require(distance(light.w, wanted) < distance(full.w, wanted) + 0.02 * start, "weights as near to the target");
  }
  std::puts("PASS");
}
