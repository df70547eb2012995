// nvcc -o lesson lesson.cu
//
// Quantisation. A linear layer computes y = W x, and W is what fills the card. In FP32 a weight takes four bytes. In
// INT8 it takes one: a whole number q from -127 to 127, and each row of W has a scale, so that w is nearly scale * q:
//     scale = max |w| of the row / 127      q = w / scale, rounded to the nearest      so |w - scale * q| <= scale / 2
// The product never makes W again. It multiplies with q, and each sum once with the scale of its row:
//     y[row] = scale[row] * (q[row][0] * x[0] + q[row][1] * x[1] + ...)
// Bytes of a matrix of 1024 x 1024:
//     FP32                              4 * rows * width               4096 KiB
//     INT8 with a scale for each row    rows * width + 4 * rows        1028 KiB, 74.9 % less
// Converted on the card from a matrix that is there in FP32 as a whole, it needs both at once: 5124 KiB, more than
// ever. A row needs no other row to be converted. So W comes some rows at a time, and is never there as a whole.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

constexpr int rows = 1024, width = 1024, blocks = 8, threads = 128;
using Numbers = std::vector<float>;  // on the host

void require(bool good, const char* what) {
  if (!good) std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError())), std::exit(1);
}
#define CHECK(call) require((call) == cudaSuccess, #call)

__global__ void quantise(const float* w, int8_t* q, float* scale, int count) {  // count rows, a thread for each
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < count; row += gridDim.x * blockDim.x) {
    float largest = 0;
    for (int i = 0; i < width; ++i) largest = fmaxf(largest, fabsf(w[row * width + i]));
    const float step = largest / 127;
    for (int i = 0; i < width; ++i) q[row * width + i] = step > 0 ? int8_t(rintf(w[row * width + i] / step)) : 0;
    scale[row] = step;
  }
}
__global__ void multiply_int8(const int8_t* q, const float* scale, const float* x, float* y) {
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int i = 0; i < width; ++i) sum += float(q[row * width + i]) * x[i];
    y[row] = scale[row] * sum;
  }
}
__global__ void multiply_fp32(const float* w, const float* x, float* y) {
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int i = 0; i < width; ++i) sum += w[row * width + i] * x[i];
    y[row] = sum;
  }
}

size_t live, peak;  // bytes of all Buffers, now and at most
template <class T>
struct Buffer {  // on the device
  T* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t n) : bytes(n * sizeof(T)) {
    CHECK(cudaMalloc(&p, bytes));
    peak = std::max(peak, live += bytes);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { CHECK(cudaFree(p)), live -= bytes; }
  void fill(const T* from, size_t n) { CHECK(cudaMemcpy(p, from, n * sizeof(T), cudaMemcpyHostToDevice)); }
  std::vector<T> read() const {
    std::vector<T> values(bytes / sizeof(T));
    CHECK(cudaMemcpy(values.data(), p, bytes, cudaMemcpyDeviceToHost));
    return values;
  }
};

struct Run {
  size_t stays = 0, peak = 0;  // bytes: of the weights once they are loaded, and of everything at most
  double steps = 0;            // the largest error of a weight, in steps of its row
  Numbers y;
};
Run in_fp32(const Numbers& w, Buffer<float>& x, Buffer<float>& y) {
  peak = 0;
  Buffer<float> weights(w.size());
  weights.fill(w.data(), w.size());
  multiply_fp32<<<blocks, threads>>>(weights.p, x.p, y.p), CHECK(cudaGetLastError());
  return {weights.bytes, peak, 0, y.read()};
}
Run in_int8(const Numbers& w, Buffer<float>& x, Buffer<float>& y, int at_once) {  // rows in FP32 at a time
  peak = 0;
  Buffer<int8_t> q(w.size());
  Buffer<float> scale(rows);
  {
    Buffer<float> piece(size_t(at_once) * width);
    for (int row = 0; row < rows; row += at_once) {
      piece.fill(&w[size_t(row) * width], size_t(at_once) * width);
      quantise<<<blocks, threads>>>(piece.p, q.p + row * width, scale.p + row, at_once), CHECK(cudaGetLastError());
    }
  }
  multiply_int8<<<blocks, threads>>>(q.p, scale.p, x.p, y.p), CHECK(cudaGetLastError());
  Run run{q.bytes + scale.bytes, peak, 0, y.read()};
  const std::vector<int8_t> codes = q.read();
  const Numbers step = scale.read();
  for (size_t i = 0; i < w.size(); ++i)
    run.steps = std::max(run.steps, std::fabs(double(w[i]) - double(step[i / width]) * codes[i]) / step[i / width]);
  return run;
}

int main() {
  Numbers w(size_t(rows) * width), on_host(width);
  for (size_t i = 0; i < w.size(); ++i)  // some rows have larger weights than others
    w[i] = (int((i + 1) * 2654435761u >> 16 & 1023) - 511) / 8192.0f * (1 + i / width % 7);
  for (int i = 0; i < width; ++i) on_host[i] = (i * 37 % 101 - 50) / 50.0f;
  Buffer<float> x(width), y(rows);
  x.fill(on_host.data(), width);
  const Run full = in_fp32(w, x, y), whole = in_int8(w, x, y, rows);
  Run light = full;
  light = in_int8(w, x, y, 16);  // THE MITIGATION: a byte for each weight, and FP32 for 16 rows at a time only
  std::printf("one layer, %d x %d      weights        peak  a weight is off by  y is off by\n", rows, width);
  double off = 0, most = 0;
  for (const float v : full.y) most = std::max(most, std::fabs(double(v)));
  for (const auto& [what, run] : {std::pair{"FP32", &full}, {"INT8, all at once", &whole}, {"INT8, 16 rows", &light}}) {
    for (int i = 0; i < rows; ++i) off = std::max(off, std::fabs(double(run->y[i]) - full.y[i]) / most);
    std::printf("  %-20s %8.0f KiB %7.0f KiB  %11.3f steps  %9.2f %%\n", what, run->stays / 1024.0, run->peak / 1024.0,
                run->steps, 100 * off);
  }
  require(whole.peak > full.peak, "a higher peak, where all of W is there in FP32 and in INT8");
  require(light.stays * 3.98 < full.stays, "a quarter of the bytes, and the scales");
  require(light.peak * 3.7 < full.peak, "no FP32 matrix on the device at any time");
  require(light.y == whole.y && light.steps < 0.501 && light.steps > 0.4, "the same codes, half a step off at most");
  require(off > 0 && off < 0.01, "the result within 1 %");
  std::puts("PASS");
}
