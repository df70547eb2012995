// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 12
//
// Weights in 8 bits, a scale for each row. Activations after a GELU, or weights whose mean is not 0, are not symmetric around 0: then half of the 256
// codes are for numbers that never come, unless each row has a zero point: the code that stands for 0.
//     code = round(x / scale) + zero, from 0 to 255              x = (code - zero) * scale
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

constexpr int threads = 128;

// TODO: the zero point is always 128, so a row from 0 to 1 uses 128 codes of 256. Give each row a range that just covers its numbers, and 0, which must
// come back as 0 exactly. scale = (highest - lowest) / 255, 1 for a row of zeros; zero = round(-lowest / scale). The budget has room for the weights,
// the codes, and a scale and a zero point for each row. Each row has a block, of as many threads as you like (`threads` above).
__global__ void quantise_rows(const float* w, int width, unsigned char* codes, float* scales, unsigned char* zeros) {
  const int row = blockIdx.x;
  float largest = 0;
  for (int i = 0; i < width; ++i) largest = fmaxf(largest, fabsf(w[row * width + i]));
  const float scale = largest > 0 ? largest / 127 : 1;
  for (int i = threadIdx.x; i < width; i += blockDim.x) codes[row * width + i] = (unsigned char)(rintf(w[row * width + i] / scale) + 128);
  if (threadIdx.x == 0) {
    scales[row] = scale;
    zeros[row] = 128;
  }
}
void quantise(const float* w, int rows, int width, unsigned char* codes, float* scales, unsigned char* zeros) {
  quantise_rows<<<rows, threads>>>(w, width, codes, scales, zeros);
  CHECK(cudaGetLastError());
}
// end of TODO

__global__ void dequantise_rows(const unsigned char* codes, const float* scales, const unsigned char* zeros, float* w, int width) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < width; i += blockDim.x) w[row * width + i] = (int(codes[row * width + i]) - int(zeros[row])) * scales[row];
}
void dequantise(const unsigned char* codes, const float* scales, const unsigned char* zeros, float* w, int rows, int width) {
  dequantise_rows<<<rows, threads>>>(codes, scales, zeros, w, width);
  CHECK(cudaGetLastError());
}
