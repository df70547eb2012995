// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 18
//
// The end of a decoder, for an image that is too large for the device: a 3 x 3 convolution from 1 channel to 4, a norm and ReLU, and a 3 x 3 convolution
// back to 1. Beyond the image's edge both convolutions see zeros. The norm takes the mean and the variance of all 4 channels and of the whole image, as
// group norm with one group does. The image is on the host, and goes through the device in strips of rows.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#define CHECK(call) check(call, #call)
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error));
}

constexpr int blocks = 32, threads = 128;
constexpr int hidden = 4;  // channels of the feature map between the convolutions
constexpr int strip = 32;  // rows of the result that are made at a time

// x: `rows` rows of `in` channels, [rows, width, in]; y: rows [first, last) of these, convolved, [last - first, width, out]. w: [out, in, 3, 3].
__global__ void convolve(const float* x, const float* w, float* y, int in, int out, int rows, int width, int first, int last) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (last - first) * width * out; i += gridDim.x * blockDim.x) {
    const int row = first + i / out / width, column = i / out % width, channel = i % out;
    float sum = 0;
    for (int k = 0; k < 9; ++k) {
      const int r = row + k / 3 - 1, c = column + k % 3 - 1;
      if (r < 0 || r >= rows || c < 0 || c >= width) continue;
      for (int j = 0; j < in; ++j) sum += x[(r * width + c) * in + j] * w[(channel * in + j) * 9 + k];
    }
    y[i] = sum;
  }
}
// Adds the sum of h[0 .. n) to sums[0], and that of its squares to sums[1].
__global__ void add_sums(const float* h, double* sums, int n) {
  double sum = 0, squares = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    sum += h[i];
    squares += double(h[i]) * h[i];
  }
  atomicAdd(&sums[0], sum);
  atomicAdd(&sums[1], squares);
}
// h = ReLU((h - mean) / standard deviation), with the sums of `count` numbers.
__global__ void normalise(float* h, const double* sums, int n, double count) {
  const double mean = sums[0] / count;
  const double scale = 1 / sqrt(sums[1] / count - mean * mean + 1e-5);
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) h[i] = fmaxf(float((h[i] - mean) * scale), 0);
}

// image, result: height * width floats on the host. w1 [hidden, 1, 3, 3] and w2 [1, hidden, 3, 3] are on the device.
// TODO: each strip is decoded as if it were an image: it is normalised with its own mean, and at its seams the rows beyond count as 0. The result shall be
// that of the whole image. The budget has room for w1, w2, the two sums, a strip of the result, and with their halos a strip of the image, with 2 rows
// more on either side, and one of the feature map, with 1 row more on either side.
void decode(const float* image, const float* w1, const float* w2, float* result, int height, int width) {
  float *x = nullptr, *h = nullptr, *y = nullptr;
  double* sums = nullptr;
  CHECK(cudaMalloc(&x, size_t(strip) * width * sizeof(float)));
  CHECK(cudaMalloc(&h, size_t(strip) * width * hidden * sizeof(float)));
  CHECK(cudaMalloc(&y, size_t(strip) * width * sizeof(float)));
  CHECK(cudaMalloc(&sums, 2 * sizeof(double)));
  for (int top = 0; top < height; top += strip) {
    const int rows = std::min(strip, height - top);
    CHECK(cudaMemcpy(x, image + size_t(top) * width, size_t(rows) * width * sizeof(float), cudaMemcpyHostToDevice));
    convolve<<<blocks, threads>>>(x, w1, h, 1, hidden, rows, width, 0, rows);
    CHECK(cudaMemset(sums, 0, 2 * sizeof(double)));
    add_sums<<<blocks, threads>>>(h, sums, rows * width * hidden);
    normalise<<<blocks, threads>>>(h, sums, rows * width * hidden, double(rows) * width * hidden);
    convolve<<<blocks, threads>>>(h, w2, y, hidden, 1, rows, width, 0, rows);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(result + size_t(top) * width, y, size_t(rows) * width * sizeof(float), cudaMemcpyDeviceToHost));
  }
  for (void* p : {(void*)x, (void*)h, (void*)y, (void*)sums}) CHECK(cudaFree(p));
}
// end of TODO
