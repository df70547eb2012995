// nvcc -o lesson lesson.cu
//
// Quantisation, symmetric and by row. A linear layer computes y = W x, and W is what fills the card. In FP32 a weight
// takes 4 bytes. In INT8 it takes 1: an integer q from -127 to 127. Each row has a scale, and w is nearly scale * q:
//     scale = max |w| of the row / 127      q = w / scale, rounded to the nearest      so |w - scale * q| <= scale / 2
// The product multiplies by q, and never restores W in FP32. Bytes of a matrix of 1024 x 1024:
//     FP32                              4 * rows * width               4096 KiB
//     INT8 with a scale for each row    rows * width + 4 * rows        1028 KiB, 74.9 % less
// Converted on the card at once, it needs both: 5124 KiB (x and y aside), more than FP32 alone. But each row can be
// converted by itself, so W comes some rows at a time. The price: accuracy, and the conversion. A product reads less.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

constexpr int rows = 1024;   // of W, and numbers of y
constexpr int width = 1024;  // numbers of a row of W, and of x
constexpr int piece = 16;    // rows that are on the device in FP32 at a time, with the mitigation
constexpr int blocks = 256;
constexpr int threads = 128;
static_assert(rows % piece == 0 && width % 4 == 0, "whole pieces, and whole packs of four codes");
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == cudaSuccess, cudaGetErrorString(code), call); }
#define CHECK(call) check(call, #call)
// All threads of a block bring a value, and all get the sum, or the maximum, whatever their number. In each step the
// upper half of the values goes into the lower half; of 5, 3 and 4 into 0 and 1. (cub::BlockReduce has fewer barriers.)
enum Reduction { add, maximum };
__device__ float combined(Reduction how, float a, float b) { return how == add ? a + b : fmaxf(a, b); }
__device__ float reduce(float value, float* shared, Reduction how) {
  shared[threadIdx.x] = value;
  for (unsigned remaining = blockDim.x; remaining > 1; remaining = (remaining + 1) / 2) {
    const unsigned other = threadIdx.x + (remaining + 1) / 2;
    __syncthreads();  // all values are there
    if (other < remaining) shared[threadIdx.x] = combined(how, shared[threadIdx.x], shared[other]);
  }
  __syncthreads();  // what all get is in shared[0]
  value = shared[0];
  __syncthreads();  // the next row's numbers may come only when all have read this one's
  return value;
}
__global__ void quantise(const float* w, int8_t* q, float* scales, int count) {  // a block takes a row
  __shared__ float shared[threads];
  for (int row = blockIdx.x; row < count; row += gridDim.x) {
    float largest = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) largest = fmaxf(largest, fabsf(w[row * width + i]));
    const float scale = fmaxf(reduce(largest, shared, maximum), 1e-30f) / 127;  // never 0: it divides
    for (int i = threadIdx.x; i < width; i += blockDim.x)
      q[row * width + i] = int8_t(rintf(w[row * width + i] / scale));
    if (threadIdx.x == 0) scales[row] = scale;
  }
}
template <class T>
struct alignas(4 * sizeof(T)) Four {  // numbers that a thread reads in one access; without alignas it would be four
  T v[4];
};
template <class T>  // float, or int8_t with scales
__global__ void multiply(const T* w, const float* scales, const float* x, float* y) {
  __shared__ float shared[threads];
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    float sum = 0;
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
      const auto weights = reinterpret_cast<const Four<T>*>(w + row * width)[i];
      const auto inputs = reinterpret_cast<const Four<float>*>(x)[i];
      for (int k = 0; k < 4; ++k) sum += weights.v[k] * inputs.v[k];
    }
    sum = reduce(sum, shared, add);
    if (threadIdx.x == 0) y[row] = scales ? scales[row] * sum : sum;
  }
}
size_t live;  // bytes of all Buffers
size_t peak;  // the maximum of live
template <class T>
struct Buffer {  // on the device
  T* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t n) : bytes(n * sizeof(T)) {
    CHECK(cudaMalloc(&p, bytes));
    live += bytes;
    peak = std::max(peak, live);
  }
  explicit Buffer(const std::vector<T>& from) : Buffer(from.size()) { fill(from.data(), from.size()); }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    CHECK(cudaFree(p));  // waits for kernels that still use p
    live -= bytes;
  }
  void fill(const T* from, size_t n) { CHECK(cudaMemcpy(p, from, n * sizeof(T), cudaMemcpyHostToDevice)); }
  std::vector<T> read() const {
    std::vector<T> values(bytes / sizeof(T));
    CHECK(cudaMemcpy(values.data(), p, bytes, cudaMemcpyDeviceToHost));
    return values;
  }
};
struct Run {
  size_t stays = 0;  // bytes of the weights, once they are loaded
  size_t peak = 0;   // bytes of everything
  double off = 0;    // the largest error of a weight, as a share of its row's scale
  Numbers y = {};
};
Run printed(const char* what, const Run& run) {
  std::printf("  %-20s %8.0f KiB %7.0f KiB  %8.3f of its scale\n", what, run.stays / 1024., run.peak / 1024., run.off);
  return run;
}
Run in_fp32(const Numbers& w, const Buffer<float>& x, const Buffer<float>& y) {
  peak = 0;
  const Buffer<float> weights(w);
  multiply<float><<<blocks, threads>>>(weights.p, nullptr, x.p, y.p);
  CHECK(cudaGetLastError());
  return {weights.bytes, peak, 0, y.read()};
}
Run in_int8(const Numbers& w, const Buffer<float>& x, const Buffer<float>& y, int at_once) {  // rows in FP32 at a time
  peak = 0;
  Buffer<int8_t> q(w.size());
  Buffer<float> scales(rows);
  Buffer<float> part(size_t(at_once) * width);
  for (int row = 0; row < rows; row += at_once) {
    part.fill(&w[row * width], part.bytes / sizeof(float));
    quantise<<<blocks, threads>>>(part.p, q.p + row * width, scales.p + row, at_once);
    CHECK(cudaGetLastError());
  }
  multiply<int8_t><<<blocks, threads>>>(q.p, scales.p, x.p, y.p);
  CHECK(cudaGetLastError());
  Run run{q.bytes + scales.bytes, peak, 0, y.read()};
  require(run.stays == w.size() + rows * sizeof(float), "a byte for each weight, and a scale for each row");
  const std::vector<int8_t> codes = q.read();
  const Numbers scale = scales.read();
  for (size_t i = 0; i < w.size(); ++i) {
    const double off = std::fabs(double(w[i]) - double(scale[i / width]) * codes[i]) / scale[i / width];
    require(off < 0.501, "a weight that is off by half of its scale at most");
    run.off = std::max(run.off, off);
  }
  return run;
}
double norm(const Numbers& y) { return std::sqrt(std::inner_product(y.begin(), y.end(), y.begin(), 0.0)); }
std::minstd_rand generator;
float pseudo_random() { return 2.0f * generator() / generator.max() - 1; }  // between -1 and 1

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  Numbers w(size_t(rows) * width);
  Numbers inputs(width);
  for (size_t i = 0; i < w.size(); ++i) w[i] = (1 + i / width % 7) / 16.0f * pseudo_random();  // rows differ in size
  for (float& input : inputs) input = pseudo_random();
  const Buffer<float> x(inputs);
  const Buffer<float> y(rows);
  std::printf("one layer, %d x %d      weights        peak  a weight is off by\n", rows, width);
  int at_once = rows;  // that are on the device in FP32
  Run full;
  Run whole;
  Run light;
  if (without) full = printed("FP32", in_fp32(w, x, y));
  if (without) whole = printed("INT8, all at once", in_int8(w, x, y, at_once));
  at_once = piece;  // THE MITIGATION: only 16 rows at a time
  if (with) light = printed("INT8, 16 rows", in_int8(w, x, y, at_once));
  if (without) require(whole.peak > full.peak, "a higher peak, where all of W is there in FP32 and in INT8");
  if (with) require(light.peak < 1.1 * light.stays, "no FP32 matrix on the device at any time");
  if (with && without) {
    require(light.y == whole.y && light.off > 0.4, "the same codes, some of them half a scale off");
    for (int i = 0; i < rows; ++i) light.y[i] -= full.y[i];
    const double off = norm(light.y) / norm(full.y);
    std::printf("  y, as a vector, is off by %.2f %% of its length\n", 100 * off);
    require(off > 0 && off < 0.01, "the result within 1 %");
  }
  std::puts("PASS");
}
