// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 09
//
// A blur of an image that is too large for the device: each pixel becomes the mean of the (2 radius + 1)^2 pixels around it, those outside the
// image counting as 0. The image is on the host, and goes through the device in strips.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#define CHECK(call) check(call, #call)
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error));
}

constexpr int blocks = 32, threads = 128;

// in: `rows` rows of an image, out: rows [first, last) of these, blurred.
__global__ void blur_rows(const float* in, float* out, int rows, int width, int first, int last, int radius) {
  for (int p = blockIdx.x * blockDim.x + threadIdx.x; p < (last - first) * width; p += gridDim.x * blockDim.x) {
    const int y = first + p / width, x = p % width;
    float sum = 0;
    for (int r = y - radius; r <= y + radius; ++r)
      for (int c = x - radius; c <= x + radius; ++c)
        if (r >= 0 && r < rows && c >= 0 && c < width) sum += in[r * width + c];
    out[p] = sum / ((2 * radius + 1) * (2 * radius + 1));
  }
}

constexpr int strip = 32;  // rows of the result that are made at a time

// image, result: height * width floats on the host.
// TODO: at the seams of the strips the rows above and below are missing, and count as 0. The budget has room for a strip of the result, and for
// a strip of the image with `radius` rows more on either side.
void blur(const float* image, float* result, int height, int width, int radius) {
  float* in = nullptr;
  float* out = nullptr;
  CHECK(cudaMalloc(&in, size_t(strip) * width * sizeof(float)));
  CHECK(cudaMalloc(&out, size_t(strip) * width * sizeof(float)));
  for (int y = 0; y < height; y += strip) {
    const int rows = std::min(strip, height - y);
    CHECK(cudaMemcpy(in, image + size_t(y) * width, size_t(rows) * width * sizeof(float), cudaMemcpyHostToDevice));
    blur_rows<<<blocks, threads>>>(in, out, rows, width, 0, rows, radius);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(result + size_t(y) * width, out, size_t(rows) * width * sizeof(float), cudaMemcpyDeviceToHost));
  }
  CHECK(cudaFree(in));
  CHECK(cudaFree(out));
}
// end of TODO
