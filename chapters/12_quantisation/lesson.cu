// nvcc -o lesson lesson.cu
//
// Quantisation. A linear layer computes y = W x, and W is what fills the card. In FP32 a weight takes four bytes. In
// INT8 it takes one: an integer q from -127 to 127, and each row of W has a scale, so that w is nearly scale * q:
//     scale = max |w| of the row / 127      q = w / scale, rounded to the nearest      so |w - scale * q| <= scale / 2
// (Symmetric absmax quantisation, per row, or per channel.) The product never restores W in FP32. It multiplies with q,
// and each sum once with the scale of its row.
// Bytes of a matrix of 1024 x 1024:
//     FP32                              4 * rows * width               4096 KiB
//     INT8 with a scale for each row    rows * width + 4 * rows        1028 KiB, 74.9 % less
// Converted on the card at once, it needs both: 5124 KiB, more than ever. But a row needs no other row to be converted.
// So W comes some rows at a time. The price: accuracy, and a conversion of each weight. A product reads a quarter.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int rows = 1024;   // of W, and numbers of y
constexpr int width = 1024;  // numbers of a row of W, and of x
constexpr int piece = 16;    // rows that are on the device in FP32 at a time, with the mitigation
constexpr int blocks = 256;
constexpr int threads = 128;
static_assert(rows % piece == 0 && width % 4 == 0, "whole pieces, and whole packs of four codes");
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what, const char* of = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", of, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == cudaSuccess, cudaGetErrorString(code), call); }
#define CHECK(call) check(call, #call)

// All threads of a block bring a value, and all get the sum, or the maximum. The upper half of the values goes into the
// lower half, until one is left. Right for any number of threads, also for one a block, as the host build has them; for
// a GPU alone one would take cub::BlockReduce.
enum class Reduction { sum, max };
__device__ float reduce(float value, float* shared, Reduction what) {
  shared[threadIdx.x] = value;
  __syncthreads();  // all values are there
  for (unsigned remaining = blockDim.x; remaining > 1; remaining = (remaining + 1) / 2) {
    const unsigned other = threadIdx.x + (remaining + 1) / 2;  // of an odd number the middle one waits
    float& mine = shared[threadIdx.x];
    if (other < remaining) mine = what == Reduction::sum ? mine + shared[other] : fmaxf(mine, shared[other]);
    __syncthreads();  // this half is added
  }
  value = shared[0];
  __syncthreads();  // the next row's numbers may come only when all have read this one's
  return value;
}
// A block takes a row. Threads side by side read weights side by side.
__global__ void quantise(const float* w, int8_t* q, float* scales, int count) {
  __shared__ float shared[threads];
  for (int row = blockIdx.x; row < count; row += gridDim.x) {
    float largest = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) largest = fmaxf(largest, fabsf(w[row * width + i]));
    const float scale = reduce(largest, shared, Reduction::max) / 127;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
      q[row * width + i] = scale > 0 ? int8_t(rintf(w[row * width + i] / scale)) : 0;
    if (threadIdx.x == 0) scales[row] = scale;
  }
}
__global__ void multiply_fp32(const float* w, const float* x, float* y) {
  __shared__ float shared[threads];
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    float sum = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += w[row * width + i] * x[i];
    sum = reduce(sum, shared, Reduction::sum);
    if (threadIdx.x == 0) y[row] = sum;
  }
}
// Four numbers that a thread reads at once, as float4 and char4 are, but with an index: 16 bytes of x, 4 of codes.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};
__global__ void multiply_int8(const int8_t* q, const float* scales, const float* x, float* y) {
  __shared__ float shared[threads];
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    float sum = 0;
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
      const auto codes = reinterpret_cast<const Four<int8_t>*>(q + row * width)[i];
      const auto inputs = reinterpret_cast<const Four<float>*>(x)[i];
      for (int k = 0; k < 4; ++k) sum += codes.v[k] * inputs.v[k];
    }
    sum = reduce(sum, shared, Reduction::sum);
    if (threadIdx.x == 0) y[row] = scales[row] * sum;
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
void print(const char* what, const Run& run) {
  std::printf("  %-20s %8.0f KiB %7.0f KiB  %8.3f of its scale\n", what, run.stays / 1024., run.peak / 1024., run.off);
}
Run in_fp32(const Numbers& w, const Buffer<float>& x, const Buffer<float>& y) {
  peak = 0;
  Buffer<float> weights(w.size());
  weights.fill(w.data(), w.size());
  multiply_fp32<<<blocks, threads>>>(weights.p, x.p, y.p);
  CHECK(cudaGetLastError());
  return {weights.bytes, peak, 0, y.read()};
}
Run in_int8(const Numbers& w, const Buffer<float>& x, const Buffer<float>& y, int at_once) {  // rows in FP32 at a time
  peak = 0;
  Buffer<int8_t> q(w.size());
  Buffer<float> scales(rows);
  {  // the FP32 part goes before the product comes
    Buffer<float> part(size_t(at_once) * width);
    for (int row = 0; row < rows; row += at_once) {
      part.fill(&w[row * width], part.bytes / sizeof(float));
      quantise<<<blocks, threads>>>(part.p, q.p + row * width, scales.p + row, at_once);
      CHECK(cudaGetLastError());
    }
  }
  multiply_int8<<<blocks, threads>>>(q.p, scales.p, x.p, y.p);
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
float pseudo_random(unsigned i) {  // between -1 and 1
  const unsigned hash = (i + 1) * 2654435761u;
  return (hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  Numbers w(size_t(rows) * width);
  Numbers inputs(width);
  for (unsigned i = 0; i < w.size(); ++i) w[i] = (1 + i / width % 7) / 16.0f * pseudo_random(i);  // rows differ in size
  for (unsigned i = 0; i < width; ++i) inputs[i] = pseudo_random((1 << 20) + i);
  Buffer<float> x(width);
  Buffer<float> y(rows);
  x.fill(inputs.data(), width);
  std::printf("one layer, %d x %d      weights        peak  a weight is off by\n", rows, width);
  int at_once = rows;  // that are on the device in FP32
  Run full;
  Run whole;
  Run light;
  if (without) {
    full = in_fp32(w, x, y);
    print("FP32", full);
    whole = in_int8(w, x, y, at_once);
    print("INT8, all at once", whole);
    require(whole.peak > full.peak, "a higher peak, where all of W is there in FP32 and in INT8");
  }
  at_once = piece;  // THE MITIGATION: only 16 rows at a time
  if (with) {
    light = in_int8(w, x, y, at_once);
    print("INT8, 16 rows", light);
    require(light.peak < 1.1 * light.stays, "no FP32 matrix on the device at any time");
  }
  if (with && without) {
    double off = 0;
    double largest = 0;
    for (int i = 0; i < rows; ++i) {
      off = std::max(off, std::fabs(double(light.y[i]) - full.y[i]));
      largest = std::max(largest, std::fabs(double(full.y[i])));
    }
    off /= largest;
    std::printf("  y is off by %.2f %% of the largest y at most\n", 100 * off);
    require(light.stays * 3.98 < full.stays, "a quarter of the bytes, and the scales");
    require(light.y == whole.y && light.off > 0.4, "the same codes, some of them half a scale off");
    require(off > 0 && off < 0.01, "the result within 1 %");
  }
  std::puts("PASS");
}
