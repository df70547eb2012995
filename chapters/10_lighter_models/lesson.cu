// nvcc -o lesson lesson.cu
//
// A lighter model. A 3 x 3 convolution makes each output channel from all channels of the 3 x 3 pixels around it. A
// separable one does that in two steps. The first is depthwise: 3 x 3 pixels of each channel, by themselves. The second
// is pointwise: all channels of one pixel, a convolution of 1 x 1. From 64 channels to 64:
//     convolution    9 * 64 * 64         36,864 weights
//     separable      9 * 64 + 64 * 64     4,672 weights, 7.9 times fewer
// Each weight is counted once for each pixel, so products fall as weights do. Memory need not: training keeps images
// for the backward pass, and there is one more, between the two steps. Images, not weights, fill a card. In inference
// an image is freed as soon as it has been read. Then both have two images at a time, and only weights are saved. A
// separable convolution is one whose weights are products: weight[k][c][o] = depth[k][c] * point[c][o]. Here they are
// chosen so, and the results agree. Those of a trained convolution are not: a lighter model must itself be trained.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <vector>

constexpr int channels = 64, side = 40, pixels = side * side, blocks = 1024, threads = 256;
using Numbers = std::vector<float>;  // on the host, channels last: images are [side, side, channels]

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require((call) == cudaSuccess, #call)

// The pixel that place k of a window around pixel `at` sees, or -1: around the image are zeros.
__device__ int seen(int at, int k, int size) {
  const int y = at / side + k / size - size / 2;
  const int x = at % side + k % size - size / 2;
  const bool inside = y >= 0 && y < side && x >= 0 && x < side;
  return inside ? y * side + x : -1;
}
// Weights are [place in the window, in channel, out channel]: threads side by side read weights side by side.
__global__ void convolve(const float* image, const float* weights, float* result, int size) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pixels * channels; i += gridDim.x * blockDim.x) {
    const int out = i % channels;
    float sum = 0;
    for (int k = 0; k < size * size; ++k) {
      const int pixel = seen(i / channels, k, size);
      if (pixel < 0) continue;
      for (int c = 0; c < channels; ++c)
        sum += weights[(k * channels + c) * channels + out] * image[pixel * channels + c];
    }
    result[i] = sum;
  }
}
// Weights are [place in the window, channel].
__global__ void convolve_depthwise(const float* image, const float* weights, float* result, int size) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pixels * channels; i += gridDim.x * blockDim.x) {
    const int c = i % channels;
    float sum = 0;
    for (int k = 0; k < size * size; ++k) {
      const int pixel = seen(i / channels, k, size);
      if (pixel >= 0) sum += weights[k * channels + c] * image[pixel * channels + c];
    }
    result[i] = sum;
  }
}

size_t live;     // bytes of all Buffers
size_t peak;     // the most that they have been
struct Buffer {  // on the device
  float* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t n) : bytes(n * sizeof(float)) {
    CHECK(cudaMalloc(&p, bytes));
    live += bytes;
    peak = std::max(peak, live);
  }
  explicit Buffer(const Numbers& n) : Buffer(n.size()) { CHECK(cudaMemcpy(p, n.data(), bytes, cudaMemcpyDefault)); }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    CHECK(cudaFree(p));
    live -= bytes;
  }
};

struct Layer {
  decltype(&convolve) kernel;
  int size;  // of its window
  Numbers weights;
};
struct Run {
  size_t weights = 0;
  size_t products = 0;
  size_t peak = 0;
  double images = 0;  // at a time
  Numbers result = Numbers(pixels * channels);
};
Run forward(const char* what, const Numbers& image, const std::vector<Layer>& layers, bool training) {
  Run run;
  std::list<Buffer> weights;
  std::list<Buffer> images;
  for (const Layer& layer : layers) {
    weights.emplace_back(layer.weights);
    run.weights += layer.weights.size();
  }
  images.emplace_back(image);
  auto w = weights.begin();
  for (const auto& [kernel, size, numbers] : layers) {
    const float* x = images.back().p;
    float* y = images.emplace_back(image.size()).p;
    kernel<<<blocks, threads>>>(x, w->p, y, size);
    CHECK(cudaPeekAtLastError());
    ++w;
    run.products += numbers.size() * pixels;
    if (!training) images.pop_front();
  }
  CHECK(cudaMemcpy(run.result.data(), images.back().p, images.back().bytes, cudaMemcpyDefault));
  run.images = double(peak - run.weights * sizeof(float)) / images.back().bytes;
  run.peak = peak;
  peak = 0;
  std::printf("  %-22s %7zu %12zu %8.2f %8.2f KiB\n", what, run.weights, run.products, run.images, run.peak / 1024.0);
  return run;
}

Numbers made(int count, int step, float most) {
  Numbers values(count);
  for (int i = 0; i < count; ++i) values[i] = (int(size_t(i) * step % 1021) - 510) / 510.0f * most;
  return values;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  const Numbers image = made(pixels * channels, 7919, 1);
  const Numbers depth = made(9 * channels, 4391, 0.33f);
  Numbers point = made(channels * channels, 6007, 0.125f);
  Numbers both(9 * channels * channels);
  for (size_t i = 0; i < both.size(); ++i) {
    const size_t k_and_in = i / channels;
    both[i] = depth[k_and_in] * point[i % (channels * channels)];
  }
  std::vector<Layer> layers = {{convolve, 3, both}};
  std::printf("%d channels, %d x %d     weights     products   images         peak\n", channels, side, side);
  Run full_kept;
  Run light_kept;
  Run full_freed;
  Run light_freed;
  if (without) full_kept = forward("convolution, training", image, layers, true);
  if (without) full_freed = forward("convolution, inference", image, layers, false);
  layers = {{convolve_depthwise, 3, depth}, {convolve, 1, point}};  // THE MITIGATION: depthwise, then pointwise
  if (with) light_kept = forward("separable, training", image, layers, true);
  if (with) light_freed = forward("separable, inference", image, layers, false);
  if (!with || !without) {
    std::puts("PASS");
    return 0;
  }
  const float most = *std::max_element(full_kept.result.begin(), full_kept.result.end());
  for (size_t i = 0; i < image.size(); ++i) {
    require(std::fabs(full_kept.result[i] - light_kept.result[i]) < 1e-5, "the same result within 1e-5");
  }
  const double fewer = double(full_kept.products) / light_kept.products;
  std::printf("  %.2f times fewer weights and products; results of up to %.2f are equal within 1e-5\n", fewer, most);
  require(full_freed.result == full_kept.result, "equal bits, images freed or not");
  require(light_freed.result == light_kept.result, "equal bits, images freed or not");
  require(most > 0.1 && fewer > 7.8 && fewer < 8, "7.9 times fewer products");
  require(full_kept.images == 2 && light_kept.images == 3, "training has one image more");
  require(full_freed.images == 2 && light_freed.images == 2, "inference has two images at a time");
  const bool larger = image.size() > both.size() - depth.size() - point.size();  // than the weights that are saved
  require((light_kept.peak > full_kept.peak) == larger, "in training one image more, fewer weights");
  require(light_freed.peak < full_freed.peak, "less memory in inference");
  std::puts("PASS");
}
