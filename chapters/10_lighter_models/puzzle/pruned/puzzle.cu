// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 10
//
// Two convolutions over a signal, y = W2 * relu(W1 * x), with kernels of 3 and zeros beyond the ends. Of the channels between them only `kept` are
// to stay: the others are pruned, as if their weights in W1 were 0.
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

constexpr int blocks = 16, threads = 128;

// out [to, length] = w [to, from, 3] * in [from, length], with relu or without
__global__ void convolve(const float* in, const float* w, float* out, int from, int to, int length, bool relu) {
  for (int p = blockIdx.x * blockDim.x + threadIdx.x; p < to * length; p += gridDim.x * blockDim.x) {
    const int channel = p / length, t = p % length;
    float sum = 0;
    for (int c = 0; c < from; ++c)
      for (int k = 0; k < 3; ++k)
        if (t + k >= 1 && t + k - 1 < length) sum += w[(channel * from + c) * 3 + k] * in[c * length + t + k - 1];
    out[p] = relu && sum < 0 ? 0 : sum;
  }
}
__global__ void set_to_zero(float* w, const int* pruned, int count, int per_channel) {
  for (int p = blockIdx.x * blockDim.x + threadIdx.x; p < count * per_channel; p += gridDim.x * blockDim.x)
    w[pruned[p / per_channel] * per_channel + p % per_channel] = 0;
}

// x [in, length], w1 [middle, in, 3], w2 [out, middle, 3], y [out, length] on the device. kept: numbers of channels, on the host, in order.
// TODO: pruned channels are set to 0, and still computed and stored: [middle, length] numbers, of which most are 0. The budget has room for what
// the kept ones need: their activations, their weights of both layers, and their numbers.
void pruned(const float* x, const float* w1, const float* w2, float* y, int in, int middle, int out, int length, const std::vector<int>& kept) {
  float* h = nullptr;
  float* zeroed = nullptr;
  int* others = nullptr;
  std::vector<int> rest;
  for (int c = 0; c < middle; ++c)
    if (std::find(kept.begin(), kept.end(), c) == kept.end()) rest.push_back(c);
  CHECK(cudaMalloc(&h, size_t(middle) * length * sizeof(float)));
  CHECK(cudaMalloc(&zeroed, size_t(middle) * in * 3 * sizeof(float)));
  CHECK(cudaMalloc(&others, (rest.size() + 1) * sizeof(int)));
  CHECK(cudaMemcpy(zeroed, w1, size_t(middle) * in * 3 * sizeof(float), cudaMemcpyDeviceToDevice));
  CHECK(cudaMemcpy(others, rest.data(), rest.size() * sizeof(int), cudaMemcpyHostToDevice));
  set_to_zero<<<blocks, threads>>>(zeroed, others, int(rest.size()), in * 3);
  convolve<<<blocks, threads>>>(x, zeroed, h, in, middle, length, true);
  convolve<<<blocks, threads>>>(h, w2, y, middle, out, length, false);
  CHECK(cudaGetLastError());
  CHECK(cudaFree(h));
  CHECK(cudaFree(zeroed));
  CHECK(cudaFree(others));
}
// end of TODO
