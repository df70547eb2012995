// nvcc -o lesson lesson.cu
//
// The optimizer's memory. For each weight Adam remembers two numbers: m, the mean of its gradients, and v, that of
// their squares. In FP32 these are 8 bytes, twice the weight. Eight bits are enough, if a group of 256 shares a scale:
//     absmax = the largest |m| of 256      m = absmax * code[q], q a byte, code 256 values from -1 to 1, dense near 0
// Bytes of both moments of n weights:
//     FP32      8 n                 2048 KiB for n = 262144
//     8 bits    2 n + 8 n / 256      520 KiB, 74.6 % less
// Codes are off by a few percent. Here the weights arrive all the same: what a step is off by, the next ones put right.
// The price of a step: for each weight the codes are searched twice. It moves a quarter of the moments' bytes.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

void require(bool good, const char* what, const char* of = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", of, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == cudaSuccess, cudaGetErrorString(code), call); }
#define CHECK(call) check(call, #call)

// Adam of one weight, which is to become `target`: its gradient is how far it is from that. `bias` is what both means
// still lack after t steps, 1 - beta^t.
struct Moments {
  float m;
  float v;
};
__device__ Moments adam(float* w, float target, Moments old, Moments bias) {
  const float g = *w - target;
  const float m = old.m + (1 - beta1) * (g - old.m);
  const float v = old.v + (1 - beta2) * (g * g - old.v);
  *w -= lr * (m / bias.m) / (sqrtf(v / bias.v) + eps);
  return {m, v};
}
__global__ void step_fp32(float* w, const float* target, float* m, float* v, Moments bias) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const Moments next = adam(&w[i], target[i], {m[i], v[i]}, bias);
    m[i] = next.m;
    v[i] = next.v;
  }
}
__device__ Moments larger(Moments a, Moments b) { return {fmaxf(a.m, b.m), fmaxf(a.v, b.v)}; }
__device__ uint8_t nearest(const float* code, float x) {  // of 256 values in order
  int q = 0;
  for (int half = 128; half > 0; half /= 2)
    if ((code[q + half - 1] + code[q + half]) / 2 < x) q += half;
  return uint8_t(q);
}
// Four numbers that a thread reads at once, as float4 and uchar4, but with an index: 16 bytes of weights, 4 of codes.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T value[4];
};
// A block of threads takes a group at a time, four weights for each thread. Their new moments wait in shared memory
// until the largest of them is known; then all are stored as codes. codes: 256 values for m, which may be negative,
// then 256 for v, which is not. Halves instead of shuffles: right for any number of threads, one included.
__global__ void step_8_bits(Four<float>* w, const Four<float>* target, Four<uint8_t>* m, Four<uint8_t>* v,
                            Moments* absmax, const float* codes, Moments bias) {
  __shared__ float code[2 * 256];
  __shared__ Moments next[group];
  __shared__ Moments largest[group / 4];
  for (int i = threadIdx.x; i < 2 * 256; i += blockDim.x) code[i] = codes[i];
  for (int b = blockIdx.x; b < n / group; b += gridDim.x) {
    const Moments scale = absmax[b];
    __syncthreads();  // all codes are there, and the last group's moments are stored
    for (int k = threadIdx.x; k < group / 4; k += blockDim.x) {
      const int i = b * (group / 4) + k;
      Four<float> weights = w[i];
      const Four<float> wanted = target[i];
      const Four<uint8_t> old_m = m[i];
      const Four<uint8_t> old_v = v[i];
      Moments mine = {0, 0};
      for (int j = 0; j < 4; ++j) {
        const Moments old = {scale.m * code[old_m.value[j]], scale.v * code[256 + old_v.value[j]]};
        const Moments now = adam(&weights.value[j], wanted.value[j], old, bias);
        next[4 * k + j] = now;
        mine = larger(mine, {fabsf(now.m), now.v});
      }
      largest[k] = mine;
      w[i] = weights;
    }
    for (int half = group / 8; half > 0; half /= 2) {  // the upper half goes into the lower half
      __syncthreads();
      for (int k = threadIdx.x; k < half; k += blockDim.x) largest[k] = larger(largest[k], largest[k + half]);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < group / 4; k += blockDim.x) {
      Four<uint8_t> new_m;
      Four<uint8_t> new_v;
      for (int j = 0; j < 4; ++j) {
        new_m.value[j] = nearest(code, largest[0].m > 0 ? next[4 * k + j].m / largest[0].m : 0);
        new_v.value[j] = nearest(code + 256, largest[0].v > 0 ? next[4 * k + j].v / largest[0].v : 0);
      }
      m[b * (group / 4) + k] = new_m;
      v[b * (group / 4) + k] = new_v;
    }
    if (threadIdx.x == 0) absmax[b] = largest[0];
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
Moments bias_after(int t) { return {1 - std::pow(beta1, float(t)), 1 - std::pow(beta2, float(t))}; }
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
Run in_8_bits(const Buffer<float>& target, const Buffer<float>& codes) {
  peak = live;
  Buffer<float> w(n);
  Buffer<Four<uint8_t>> m(n / 4);
  Buffer<Four<uint8_t>> v(n / 4);
  Buffer<Moments> absmax(n / group);
  auto* weights = reinterpret_cast<Four<float>*>(w.p);  // cudaMalloc's addresses are divisible by 256
  auto* wanted = reinterpret_cast<const Four<float>*>(target.p);
  for (int t = 1; t <= steps; ++t)
    step_8_bits<<<blocks, group / 4>>>(weights, wanted, m.p, v.p, absmax.p, codes.p, bias_after(t));
  CHECK(cudaGetLastError());
  Run run{m.bytes + v.bytes + absmax.bytes, peak};
  require(run.state == 2 * size_t(n) + 8 * size_t(n) / group, "2 bytes for each weight, and 8 for each group");
  w.read(run.w);
  return run;
}
// Dettmers' dynamic map, 256 values in order: 0, 1, and seven powers of ten from 1e-7 on. Each has twice as many values
// as the one below; with a sign half of them are negative.
Numbers dynamic_map(bool sign) {
  Numbers code = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int values = (sign ? 1 : 2) << decade;
    for (int k = 0; k < values; ++k) {
      code.push_back(std::pow(10.0f, float(decade - 6)) * (0.1f + 0.9f * (k + 0.5f) / values));
      if (sign) code.push_back(-code.back());
    }
  }
  std::sort(code.begin(), code.end());
  return code;
}
double distance(const Numbers& a, const Numbers& b) {
  double square = 0;
  for (int i = 0; i < n; ++i) square += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
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
  Numbers wanted(n);
  for (unsigned i = 0; i < n; ++i) wanted[i] = pseudo_random(i) / 8;
  Numbers code = dynamic_map(true);
  for (const float value : dynamic_map(false)) code.push_back(value);
  Buffer<float> target(n);
  Buffer<float> codes(code.size());
  target.fill(wanted);
  codes.fill(code);
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
  if (with) {
    light = in_8_bits(target, codes);  // THE MITIGATION: a byte for each moment, and a scale for 256
    print("8 bits", light);
  }
  if (with && without) {
    require(light.state * 3.9 < full.state && light.peak < 0.7 * full.peak, "a quarter of the bytes of the moments");
    require(distance(light.w, wanted) < distance(full.w, wanted) + 0.02 * start, "weights as near to the target");
  }
  std::puts("PASS");
}
