// nvcc -o lesson lesson.cu
//
// A lighter model. A 3 x 3 convolution makes each output channel from all channels of the 3 x 3 pixels around it. A
// separable one does that in two steps. The first is depthwise: 3 x 3 pixels of each channel, by themselves. The second
// is pointwise: all channels of one pixel, a convolution of 1 x 1. From 64 channels to 64:
//     convolution    9 * 64 * 64         36,864 weights
//     separable      9 * 64 + 64 * 64     4,672 weights, 7.9 times fewer
// Each weight is multiplied once for each pixel, so multiply-adds fall as weights do. Memory need not fall: training
// keeps what each layer puts out, its feature map, for the backward pass, and there is one more, between the two steps.
// Feature maps, not weights, fill a card. In inference a map is freed as soon as it has been read. Then both have two
// maps at a time, and only weights are saved. A separable convolution is one whose weights are products:
// weight[k][c][o] = depthwise[k][c] * pointwise[c][o]. Here they are chosen so, and the results agree. Those of a
// trained convolution are not: a lighter model must be trained.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <vector>

constexpr int channels = 64;  // of the input, and of each feature map
constexpr int side = 40;
constexpr int pixels = side * side;
constexpr int blocks = 1024;
constexpr int threads = 256;
using Numbers = std::vector<float>;  // on the host, channels last: maps are [side, side, channels]

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == cudaSuccess, cudaGetErrorString(code), call); }
#define CHECK(call) check(call, #call)

// The pixel that place k of a window around pixel `at` sees, or -1: around a map are zeros. (For kernels only.)
__device__ int seen(int at, int k, int size) {
  const int y = at / side + k / size - size / 2;
  const int x = at % side + k % size - size / 2;
  const bool inside = y >= 0 && y < side && x >= 0 && x < side;
  return inside ? y * side + x : -1;
}
// Weights are [place in the window, in channel, out channel]: threads side by side read weights side by side.
__global__ void convolve(const float* map, const float* weights, float* result, int size) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pixels * channels; i += gridDim.x * blockDim.x) {
    const int out = i % channels;
    float sum = 0;
    for (int k = 0; k < size * size; ++k) {
      const int pixel = seen(i / channels, k, size);
      if (pixel < 0) continue;
      for (int c = 0; c < channels; ++c)
        sum += weights[(k * channels + c) * channels + out] * map[pixel * channels + c];
    }
    result[i] = sum;
  }
}
// Weights are [place in the window, channel].
__global__ void convolve_depthwise(const float* map, const float* weights, float* result, int size) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pixels * channels; i += gridDim.x * blockDim.x) {
    const int c = i % channels;
    float sum = 0;
    for (int k = 0; k < size * size; ++k) {
      const int pixel = seen(i / channels, k, size);
      if (pixel >= 0) sum += weights[k * channels + c] * map[pixel * channels + c];
    }
    result[i] = sum;
  }
}

size_t live;     // bytes of all Buffers
size_t peak;     // the maximum of live
struct Buffer {  // on the device
  float* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t n) : bytes(n * sizeof(float)) {
    CHECK(cudaMalloc(&p, bytes));
    live += bytes;
    peak = std::max(peak, live);
  }
  explicit Buffer(const Numbers& n) : Buffer(n.size()) {
    CHECK(cudaMemcpy(p, n.data(), bytes, cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    CHECK(cudaFree(p));  // waits for kernels that still use p
    live -= bytes;
  }
};

struct Layer {
  bool depthwise;
  int size;  // of its window
  Numbers filters;
};
struct Run {
  size_t weights = 0;
  size_t multiply_adds = 0;  // at most: beyond the border there are none
  size_t peak = 0;           // bytes
  double maps = 0;           // at a time
  Numbers result = Numbers(pixels * channels);
};
Run forward(const char* what, const Numbers& image, const std::vector<Layer>& layers, bool training) {
  Run run;
  peak = live;
  std::list<Buffer> filters;
  std::list<Buffer> maps;
  for (const Layer& layer : layers) {
    filters.emplace_back(layer.filters);
    run.weights += layer.filters.size();
    run.multiply_adds += layer.filters.size() * pixels;
  }
  maps.emplace_back(image);
  auto w = filters.begin();
  for (const Layer& layer : layers) {
    const float* x = maps.back().p;
    maps.emplace_back(image.size());
    float* y = maps.back().p;
    const auto kernel = layer.depthwise ? convolve_depthwise : convolve;
    kernel<<<blocks, threads>>>(x, w->p, y, layer.size);
    CHECK(cudaGetLastError());
    ++w;
    if (!training) maps.pop_front();
  }
  CHECK(cudaMemcpy(run.result.data(), maps.back().p, maps.back().bytes, cudaMemcpyDeviceToHost));
  run.maps = double(peak - run.weights * sizeof(float)) / maps.back().bytes;
  run.peak = peak;
  std::printf("  %-22s %7zu %12zu %8.2f %8.2f KiB\n", what, run.weights, run.multiply_adds, run.maps,
              run.peak / 1024.0);
  require(run.maps == (training ? layers.size() + 1 : 2), "a map more for each layer, in inference two at a time");
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
  Numbers image(pixels * channels);
  Numbers depthwise(9 * channels);         // [place in the window, channel]
  Numbers pointwise(channels * channels);  // [in channel, out channel]
  Numbers both(9 * channels * channels);   // [place in the window, in channel, out channel]
  for (unsigned i = 0; i < image.size(); ++i) image[i] = pseudo_random(i);
  for (unsigned i = 0; i < depthwise.size(); ++i) depthwise[i] = 0.33f * pseudo_random((1 << 20) + i);
  for (unsigned i = 0; i < pointwise.size(); ++i) pointwise[i] = 0.125f * pseudo_random((2 << 20) + i);
  for (size_t i = 0; i < both.size(); ++i)  // i is (place * channels + in) * channels + out
    both[i] = depthwise[i / channels] * pointwise[i % pointwise.size()];
  std::vector<Layer> layers = {{false, 3, both}};
  std::printf("%d channels, %d x %d     weights multiply-adds    maps         peak\n", channels, side, side);
  Run full_kept;
  Run light_kept;
  Run full_freed;
  Run light_freed;
  if (without) full_kept = forward("convolution, training", image, layers, true);
  if (without) full_freed = forward("convolution, inference", image, layers, false);
  layers = {{true, 3, depthwise}, {false, 1, pointwise}};  // THE MITIGATION: depthwise, then pointwise
  if (with) light_kept = forward("separable, training", image, layers, true);
  if (with) light_freed = forward("separable, inference", image, layers, false);
  if (with && without) {
    const float largest = *std::max_element(full_kept.result.begin(), full_kept.result.end());
    for (size_t i = 0; i < image.size(); ++i)
      require(std::fabs(full_kept.result[i] - light_kept.result[i]) < 1e-5, "the same result within 1e-5");
    const double fewer = double(full_kept.multiply_adds) / light_kept.multiply_adds;
    std::printf("  %.2f times fewer weights and multiply-adds; results of up to %.2f are equal within 1e-5\n", fewer,
                largest);
    require(full_freed.result == full_kept.result, "equal bits, maps freed or not");
    require(light_freed.result == light_kept.result, "equal bits, maps freed or not");
    require(largest > 0.1 && fewer > 7.8 && fewer < 8, "7.9 times fewer multiply-adds");
    const bool larger = image.size() > both.size() - depthwise.size() - pointwise.size();  // than the weights saved
    require((light_kept.peak > full_kept.peak) == larger, "in training one more map, and fewer weights");
    require(light_freed.peak < full_freed.peak, "less memory in inference");
  }
  std::puts("PASS");
}
