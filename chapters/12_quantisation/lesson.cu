// nvcc -o lesson lesson.cu
//
// Quantisation. A linear layer computes y = W x, and W is what fills the card. In FP32 a weight takes four bytes. In
// INT8 it takes one: an integer q from -127 to 127, and each row of W has a scale, so that w is nearly scale * q:
//     scale = max |w| of the row / 127      q = w / scale, rounded to the nearest      so |w - scale * q| <= scale / 2
// The product never makes W again. It multiplies with q, and each sum once with the scale of its row.
// Bytes of a matrix of 1024 x 1024:
//     FP32                              4 * rows * width               4096 KiB
//     INT8 with a scale for each row    rows * width + 4 * rows        1028 KiB, 74.9 % less
// Converted on the card at once, it needs both: 5124 KiB, more than ever. But a row needs no other row to be converted.
// So W comes some rows at a time. A step pays with accuracy and a conversion of each weight, and reads a quarter.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int rows = 1024, width = 1024, blocks = 256, threads = 128;
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require((call) == cudaSuccess, #call)

// All threads of a block bring a number, and all get the sum, or the largest. The upper half goes into the lower half.
enum Result { sum_of_all, largest_of_all };
__device__ float reduce(float value, float* shared, Result what) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned left = blockDim.x; left > 1; left = (left + 1) / 2) {
    const unsigned other = threadIdx.x + (left + 1) / 2;
    float& mine = shared[threadIdx.x];
    if (other < left) mine = what == sum_of_all ? mine + shared[other] : fmaxf(mine, shared[other]);
    __syncthreads();
  }
  value = shared[0];
  __syncthreads();  // the next row's numbers may come only when all have read this one's
  return value;
}
// A block takes a row. Threads side by side read weights side by side.
__global__ void quantise(const float* w, int8_t* q, float* scale, int count) {
  __shared__ float shared[threads];
  for (int row = blockIdx.x; row < count; row += gridDim.x) {
    float largest = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) largest = fmaxf(largest, fabsf(w[row * width + i]));
    const float step = reduce(largest, shared, largest_of_all) / 127;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
      q[row * width + i] = step > 0 ? int8_t(rintf(w[row * width + i] / step)) : 0;
    if (threadIdx.x == 0) scale[row] = step;
  }
}
__global__ void multiply_fp32(const float* w, const float* x, float* y) {
  __shared__ float shared[threads];
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    float sum = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += w[row * width + i] * x[i];
    sum = reduce(sum, shared, sum_of_all);
    if (threadIdx.x == 0) y[row] = sum;
  }
}
template <class T>
struct alignas(4 * sizeof(T)) Four {  // read at once, so that a thread reads at least 4 bytes
  T v[4];
};
__global__ void multiply_int8(const int8_t* q, const float* scale, const float* x, float* y) {
  __shared__ float shared[threads];
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    float sum = 0;
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
      const auto codes = reinterpret_cast<const Four<int8_t>*>(q + row * width)[i];
      const auto inputs = reinterpret_cast<const Four<float>*>(x)[i];
      for (int k = 0; k < 4; ++k) sum += codes.v[k] * inputs.v[k];
    }
    sum = reduce(sum, shared, sum_of_all);
    if (threadIdx.x == 0) y[row] = scale[row] * sum;
  }
}
size_t live;  // bytes of all Buffers
size_t peak;  // the most that they have been
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
    CHECK(cudaFree(p));
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
  size_t peak = 0;   // bytes of everything at most
  double off = 0;    // the largest error of a weight, in steps of its row
  Numbers y = {};
};
Run print(const char* what, const Run& run) {
  std::printf("  %-20s %8.0f KiB %7.0f KiB  %11.3f steps\n", what, run.stays / 1024.0, run.peak / 1024.0, run.off);
  return run;
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
  Buffer<float> scale(rows);
  {
    Buffer<float> piece(size_t(at_once) * width);
    for (int row = 0; row < rows; row += at_once) {
      piece.fill(&w[row * width], piece.bytes / sizeof(float));
      quantise<<<blocks, threads>>>(piece.p, q.p + row * width, scale.p + row, at_once);
    }
  }
  multiply_int8<<<blocks, threads>>>(q.p, scale.p, x.p, y.p);
  CHECK(cudaGetLastError());
  Run run{q.bytes + scale.bytes, peak, 0, y.read()};
  const std::vector<int8_t> codes = q.read();
  const Numbers step = scale.read();
  for (size_t i = 0; i < w.size(); ++i)
    run.off = std::max(run.off, std::fabs(double(w[i]) - double(step[i / width]) * codes[i]) / step[i / width]);
  return run;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  Numbers w(size_t(rows) * width);
  Numbers inputs(width);
  for (size_t i = 0; i < w.size(); ++i)  // some rows have larger weights than others
    w[i] = (int((i + 1) * 2654435761u >> 16 & 1023) - 511) / 8192.0f * (1 + i / width % 7);
  for (int i = 0; i < width; ++i) inputs[i] = (i * 37 % 101 - 50) / 50.0f;
  Buffer<float> x(width);
  Buffer<float> y(rows);
  x.fill(inputs.data(), width);
  std::printf("one layer, %d x %d      weights        peak  a weight is off by\n", rows, width);
  int at_once = rows;  // that are on the device in FP32
  Run full;
  Run whole;
  Run light;
  if (without) {
    full = print("FP32", in_fp32(w, x, y));
    whole = print("INT8, all at once", in_int8(w, x, y, at_once));
  }
  at_once = 16;  // THE MITIGATION: only 16 rows at a time
  if (with) light = print("INT8, 16 rows", in_int8(w, x, y, at_once));
  if (with && without) {
    double off = 0;
    double largest = 0;
    for (int i = 0; i < rows; ++i) {
      off = std::max(off, std::fabs(double(light.y[i]) - full.y[i]));
      largest = std::max(largest, std::fabs(double(full.y[i])));
    }
    off /= largest;
    std::printf("  y is off by %.2f %% of the largest y at most\n", 100 * off);
    require(whole.peak > full.peak, "a higher peak, where all of W is there in FP32 and in INT8");
    require(light.stays * 3.98 < full.stays, "a quarter of the bytes, and the scales");
    require(light.peak * 3.7 < full.peak, "no FP32 matrix on the device at any time");
    require(light.y == whole.y && light.off < 0.501 && light.off > 0.4, "the same codes, half a step off at most");
    require(off > 0 && off < 0.01, "the result within 1 %");
  }
  std::puts("PASS");
}
