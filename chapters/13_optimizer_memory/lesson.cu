// nvcc -o lesson lesson.cu
//
// The optimizer's memory. For each weight AdamW remembers two numbers: m, the mean of its gradients, and v, that of
// their squares. In FP32 these are 8 bytes, twice the weight. Eight bits are enough, if 256 numbers share a scale:
//     absmax = the largest |m| of 256      m = absmax * code[q], q a byte, code 256 values from -1 to 1, dense near 0
// Bytes of both moments of n weights:
//     FP32      8 n                 2048 KiB for n = 262144
//     8 bits    2 n + 8 n / 256      520 KiB, 74.6 % less
// Codes are off by a few percent. The weights arrive all the same: what a step is off by, the next ones put right.
// The price of a step: for each weight the table is searched twice. It moves a quarter of the moments' bytes.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int n = 262144, group = 256, steps = 30, blocks = 32, threads = 256;
constexpr float lr = 0.01f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require((call) == cudaSuccess, #call)

// AdamW of one weight, which is to become `target`: its gradient is how far it is from that. (Its decay is 0.)
struct Moments {
  float m;
  float v;
};
__device__ Moments adamw(float* w, float target, Moments old, int t) {
  const float g = *w - target;
  const float m = old.m + (1 - beta1) * (g - old.m);
  const float v = old.v + (1 - beta2) * (g * g - old.v);
  *w -= lr * (m / (1 - powf(beta1, t))) / (sqrtf(v / (1 - powf(beta2, t))) + eps);
  return {m, v};
}
__global__ void step_fp32(float* w, const float* target, float* m, float* v, int t) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const Moments next = adamw(&w[i], target[i], {m[i], v[i]}, t);
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
// What a thread reads at once: 16 bytes of weights, or 4 bytes of codes.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T value[4];
};
// A block takes 256 weights at a time, four for each thread. Their new moments wait in shared memory until the largest
// of them is known; then all are stored as codes. codes: 256 values for m, which may be negative, and 256 for v.
__global__ void step_8_bits(Four<float>* w, const Four<float>* target, Four<uint8_t>* m, Four<uint8_t>* v,
                            Moments* absmax, const float* codes, int t) {
  __shared__ float code[2 * 256];
  __shared__ Moments next[group];
  __shared__ Moments most[group / 4];
  for (int i = threadIdx.x; i < 2 * 256; i += blockDim.x) code[i] = codes[i];
  for (int b = blockIdx.x; b < n / group; b += gridDim.x) {
    const Moments scale = absmax[b];
    __syncthreads();  // all codes are there, and the last group's moments are stored
    for (int k = threadIdx.x; k < group / 4; k += blockDim.x) {
      const int i = b * (group / 4) + k;
      Four<float> weights = w[i];
      const Four<float> goals = target[i];
      const Four<uint8_t> old_m = m[i];
      const Four<uint8_t> old_v = v[i];
      most[k] = {0, 0};
      for (int j = 0; j < 4; ++j) {
        const Moments old = {scale.m * code[old_m.value[j]], scale.v * code[256 + old_v.value[j]]};
        const Moments now = adamw(&weights.value[j], goals.value[j], old, t);
        next[4 * k + j] = now;
        most[k] = larger(most[k], {fabsf(now.m), now.v});
      }
      w[i] = weights;
    }
    for (int half = group / 8; half > 0; half /= 2) {  // the upper half goes into the lower half
      __syncthreads();
      for (int k = threadIdx.x; k < half; k += blockDim.x) most[k] = larger(most[k], most[k + half]);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < group / 4; k += blockDim.x) {
      Four<uint8_t> new_m;
      Four<uint8_t> new_v;
      for (int j = 0; j < 4; ++j) {
        new_m.value[j] = nearest(code, most[0].m > 0 ? next[4 * k + j].m / most[0].m : 0);
        new_v.value[j] = nearest(code + 256, most[0].v > 0 ? next[4 * k + j].v / most[0].v : 0);
      }
      m[b * (group / 4) + k] = new_m;
      v[b * (group / 4) + k] = new_v;
    }
    if (threadIdx.x == 0) absmax[b] = most[0];
  }
}

size_t live;  // bytes of all Buffers
size_t peak;  // the most that they have been
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
Run in_fp32(const Buffer<float>& target, const Buffer<float>&) {
  peak = live;
  Buffer<float> w(n);
  Buffer<float> m(n);
  Buffer<float> v(n);
  for (int t = 1; t <= steps; ++t) step_fp32<<<blocks, threads>>>(w.p, target.p, m.p, v.p, t);
  CHECK(cudaGetLastError());
  Run run{m.bytes + v.bytes, peak};
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
  auto* goals = reinterpret_cast<const Four<float>*>(target.p);
  for (int t = 1; t <= steps; ++t) step_8_bits<<<blocks, group / 4>>>(weights, goals, m.p, v.p, absmax.p, codes.p, t);
  CHECK(cudaGetLastError());
  Run run{m.bytes + v.bytes + absmax.bytes, peak};
  w.read(run.w);
  return run;
}
// 256 values from 1e-7 to 1, and as far below 0 where there is a sign: seven decades, each with twice the last one's.
Numbers table(bool sign) {
  Numbers code = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int cells = (sign ? 1 : 2) << decade;
    for (int k = 0; k < cells; ++k) {
      code.push_back(std::pow(10.0f, float(decade - 6)) * (0.1f + 0.9f * (k + 0.5f) / cells));
      if (sign) code.push_back(-code.back());
    }
  }
  std::sort(code.begin(), code.end());
  return code;
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
  Numbers goal(n);
  Numbers code = table(true);
  const Numbers code_of_v = table(false);
  code.insert(code.end(), code_of_v.begin(), code_of_v.end());
  for (int i = 0; i < n; ++i) goal[i] = (int((i + 1) * 2654435761u >> 16 & 1023) - 511) / 4096.0f;
  Buffer<float> target(n);
  Buffer<float> codes(code.size());
  target.fill(goal);
  codes.fill(code);
  std::printf("%d weights, %d steps   moments       peak   distance to the target, of 1\n", n, steps);
  const double start = distance(goal, Numbers(n));
  const auto print = [&](const char* what, const Run& run) {
    std::printf("  %-20s %8.0f KiB %6.0f KiB   %.4f\n", what, run.state / 1024., run.peak / 1024.,
                distance(run.w, goal) / start);
  };
  Run full;
  Run light;
  auto train = in_fp32;
  if (without) full = train(target, codes);
  train = in_8_bits;  // THE MITIGATION: a byte for each moment, and a scale for 256
  if (with) light = train(target, codes);
  if (without) print("FP32", full);
  if (with) print("8 bits", light);
  if (with && without) {
    require(light.state * 3.9 < full.state && light.peak < 0.7 * full.peak, "a quarter of the bytes of the moments");
    require(distance(light.w, goal) < distance(full.w, goal) + 0.02 * start, "weights as near to the target");
    require(light.w != full.w, "codes that are off");
  }
  std::puts("PASS");
}
