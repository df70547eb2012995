// nvcc -o lesson lesson.cu
//
// The optimizer's memory. For each weight AdamW remembers two numbers: m, the mean of its gradients, and v, that of
// their squares. In FP32 these are 8 bytes, twice the weight. Eight bits are enough, if 256 numbers share a scale:
//     absmax = the largest |m| of 256      m = absmax * code[q], q a byte, code 256 values from -1 to 1, dense near 0
// Bytes of both moments of n weights:
//     FP32      8 n                 2048 KiB for n = 262144
//     8 bits    2 n + 8 n / 256      520 KiB, 74.6 % less
// Codes are off by a few percent. The weights arrive all the same: what a step is off by, the next ones put right.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <vector>

constexpr int n = 262144, block = 256, steps = 30, blocks = 32, threads = 128;
constexpr float lr = 0.01f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what) {
  if (!good) std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError())), std::exit(1);
}
#define CHECK(call) require((call) == cudaSuccess, #call)

// One step of one weight, which is to become target: its gradient is how far it is from that.
__device__ void moments(float g, float& m, float& v) { m += (1 - beta1) * (g - m), v += (1 - beta2) * (g * g - v); }
__device__ void adam(float* w, float target, float& m, float& v, int t) {
  moments(*w - target, m, v);
  *w -= lr * (m / (1 - powf(beta1, t))) / (sqrtf(v / (1 - powf(beta2, t))) + eps);
}
__global__ void step_fp32(float* w, const float* target, float* m, float* v, int t) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    adam(w + i, target[i], m[i], v[i], t);
}
__device__ uint8_t nearest(const float* code, float x) {  // of 256 values in order
  int q = 0;
  for (int half = 128; half > 0; half /= 2)
    if ((code[q + half - 1] + code[q + half]) / 2 < x) q += half;
  return uint8_t(q);
}
// A thread for each 256 weights. codes: 256 values for m, which may be negative, and 256 for v, which may not.
__global__ void step_8_bits(float* w, const float* target, uint8_t* m, uint8_t* v, float* absmax, const float* codes,
                            int t) {
  for (int b = blockIdx.x * blockDim.x + threadIdx.x; b < n / block; b += gridDim.x * blockDim.x) {
    const float scale_m = absmax[2 * b], scale_v = absmax[2 * b + 1];
    float most_m = 0, most_v = 0;  // of the new moments: made once to see their largest, and once more to store them
    for (int i = b * block; i < (b + 1) * block; ++i) {
      float new_m = scale_m * codes[m[i]], new_v = scale_v * codes[256 + v[i]];
      moments(w[i] - target[i], new_m, new_v);
      most_m = fmaxf(most_m, fabsf(new_m)), most_v = fmaxf(most_v, new_v);
    }
    for (int i = b * block; i < (b + 1) * block; ++i) {
      float new_m = scale_m * codes[m[i]], new_v = scale_v * codes[256 + v[i]];
      adam(w + i, target[i], new_m, new_v, t);
      m[i] = nearest(codes, most_m > 0 ? new_m / most_m : 0);
      v[i] = nearest(codes + 256, most_v > 0 ? new_v / most_v : 0);
    }
    absmax[2 * b] = most_m, absmax[2 * b + 1] = most_v;
  }
}

size_t live, peak;  // bytes of all Buffers, now and at most
template <class T>
struct Buffer {  // on the device, zero
  T* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t count) : bytes(count * sizeof(T)) {
    CHECK(cudaMalloc(&p, bytes)), CHECK(cudaMemset(p, 0, bytes));
    peak = std::max(peak, live += bytes);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { CHECK(cudaFree(p)), live -= bytes; }
  void fill(const Numbers& from) { CHECK(cudaMemcpy(p, from.data(), bytes, cudaMemcpyHostToDevice)); }
  Numbers read() const {
    Numbers values(bytes / sizeof(T));
    return CHECK(cudaMemcpy(values.data(), p, bytes, cudaMemcpyDeviceToHost)), values;
  }
};

struct Run {
  size_t state, peak;  // bytes: of the moments, and of everything
  Numbers w;
};
Run in_fp32(const Buffer<float>& target) {
  peak = live;
  Buffer<float> w(n), m(n), v(n);
  for (int t = 1; t <= steps; ++t)
    step_fp32<<<blocks, threads>>>(w.p, target.p, m.p, v.p, t), CHECK(cudaGetLastError());
  return {m.bytes + v.bytes, peak, w.read()};
}
Run in_8_bits(const Buffer<float>& target, const Buffer<float>& codes) {
  peak = live;
  Buffer<float> w(n), absmax(2 * n / block);
  Buffer<uint8_t> m(n), v(n);
  for (int t = 1; t <= steps; ++t)
    step_8_bits<<<blocks, threads>>>(w.p, target.p, m.p, v.p, absmax.p, codes.p, t), CHECK(cudaGetLastError());
  return {m.bytes + v.bytes + absmax.bytes, peak, w.read()};
}

int main() {
  Numbers code[2] = {{0, 1}, {0, 1}}, goal(n);  // from 1e-7 to 1 in decades, each with twice the values of the last one
  for (int of_v = 0; of_v < 2; ++of_v)
    for (int decade = 0; decade < 7; ++decade)
      for (int k = 0, cells = (1 + of_v) << decade; k < cells; ++k) {
        code[of_v].push_back(std::pow(10.0f, float(decade - 6)) * (0.1f + 0.9f * (k + 0.5f) / cells));
        if (!of_v) code[of_v].push_back(-code[of_v].back());
      }
  std::sort(code[0].begin(), code[0].end()), std::sort(code[1].begin(), code[1].end());
  code[0].insert(code[0].end(), code[1].begin(), code[1].end());
  for (int i = 0; i < n; ++i) goal[i] = (int((i + 1) * 2654435761u >> 16 & 1023) - 511) / 4096.0f;
  Buffer<float> target(n), codes(512);
  target.fill(goal), codes.fill(code[0]);
  Run full = in_fp32(target), light = full;
  light = in_8_bits(target, codes);  // THE MITIGATION: a byte for each moment, and a scale for 256
  std::printf("%d weights, %d steps   moments       peak   distance to the target, of 1\n", n, steps);
  double off[2] = {}, start = 0, apart = 0;
  for (int i = 0; i < n; ++i)
    start += goal[i] * goal[i], apart += std::pow(light.w[i] - full.w[i], 2),
        off[0] += std::pow(full.w[i] - goal[i], 2), off[1] += std::pow(light.w[i] - goal[i], 2);
  for (const auto& [what, run, distance] : {std::tuple{"FP32", &full, off[0]}, {"8 bits", &light, off[1]}})
    std::printf("  %-20s %8.0f KiB %6.0f KiB   %.4f\n", what, run->state / 1024., run->peak / 1024.,
                sqrt(distance / start));
  require(light.state * 3.9 < full.state && light.peak < 0.7 * full.peak, "a quarter of the bytes of the moments");
  require(apart > 0 && std::sqrt(off[1] / start) < std::sqrt(off[0] / start) + 0.02, "weights as near to the target");
  std::puts("PASS");
}
