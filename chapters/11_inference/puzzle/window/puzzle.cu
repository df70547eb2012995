// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 11-window
//
// Generation with a sliding window: token t attends to the last `window` tokens, itself included. Keys and values are the tokens themselves here:
//     out[t] = sum over j of softmax(token[t] . token[j]) token[j]          for j from max(0, t - window + 1) to t
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

constexpr int threads = 64;

// cache: `count` tokens of `width` floats, the newest at `newest`. One block; a thread has a column.
__global__ void attend(const float* cache, int count, int newest, float* out, int width) {
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    float largest = -INFINITY, sum = 0, value = 0;
    for (int j = 0; j < count; ++j) {
      float score = 0;
      for (int i = 0; i < width; ++i) score += cache[newest * width + i] * cache[j * width + i];
      const float larger = fmaxf(largest, score);
      sum = sum * expf(largest - larger) + expf(score - larger);
      value = value * expf(largest - larger) + expf(score - larger) * cache[j * width + c];
      largest = larger;
    }
    out[c] = value / sum;
  }
}

// tokens, out: n * width floats on the host. They come one after the other: token t + 1 is known only when out[t] is.
// TODO: the cache keeps every token, although those before the window are never read again. The budget has room for `window` tokens, and for one
// result.
void generate(const float* tokens, float* out, int n, int width, int window) {
  float* cache = nullptr;
  float* result = nullptr;
  CHECK(cudaMalloc(&cache, size_t(n) * width * sizeof(float)));
  CHECK(cudaMalloc(&result, width * sizeof(float)));
  for (int t = 0; t < n; ++t) {
    const int first = std::max(0, t - window + 1);
    CHECK(cudaMemcpy(cache + size_t(t) * width, tokens + size_t(t) * width, width * sizeof(float), cudaMemcpyHostToDevice));
    attend<<<1, threads>>>(cache + size_t(first) * width, t - first + 1, t - first, result, width);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(out + size_t(t) * width, result, width * sizeof(float), cudaMemcpyDeviceToHost));
  }
  CHECK(cudaFree(cache));
  CHECK(cudaFree(result));
}
// end of TODO
