// nvcc -o lesson lesson.cu
//
// Three models make an image of a word, one after the other. A text encoder makes a vector of the word. A denoiser
// begins with noise, a small image of 4 channels (the latents), and removes some of it in each step; it reads the
// vector. A decoder makes pixels of the last latents, with 8 times their side. As in large pipelines, the denoiser has
// the most weights, and the decoder has the largest tensors, because its last layers have all pixels of the image:
//                       text encoder    denoiser    decoder
//     weights                576 KiB     612 KiB    110 KiB
//     computed               0.5 KiB   260.5 KiB   1280 KiB    at most, at a time
// All resident, the peak is all weights and the largest of the second row, 2578 KiB. But no model needs another one's
// weights: one model at a time needs the largest sum of a column, 1390 KiB, while the others wait in host memory. The
// price: all weights cross the bus for each image, from pinned memory, so that the host need not wait for each copy.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
constexpr int vocabulary = 1024;  // words that the text encoder knows
constexpr int word = 640;         // the one of which an image is made
constexpr int width = 128;        // numbers of the word's vector, and channels of the denoiser
constexpr int steps = 4;          // of the denoiser
constexpr int latent = 4;         // channels of the latents
constexpr int side = 16;          // rows of the latents, and pixels of a row
constexpr int latent_pixels = side * side;
constexpr int layers = 5;                                          // of the decoder
constexpr int channels[layers + 1] = {latent, 64, 32, 16, 16, 3};  // from latents to colours
constexpr int doubles[layers] = {0, 1, 1, 1, 0};                   // 1: the layer doubles the image's side
constexpr int blocks = 256;
constexpr int threads = 128;
void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == cudaSuccess, cudaGetErrorString(code), call); }
#define CHECK(call) check(call, #call)
float pseudo_random(unsigned i) {  // between -1 and 1
  const unsigned hash = (i + 1) * 2654435761u;
  return (hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f;
}
// A word's row of the table [vocabulary, width], times a matrix [width, width].
__global__ void encode(const float* row, const float* matrix, float* vector) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int k = 0; k < width; ++k) sum += row[k] * matrix[k * width + i];
    vector[i] = sum;
  }
}
enum Result { relu, plain, less_noise };
// A 3 x 3 convolution of x [in, rows, rows], whose side is doubled before if `twice` is 1. Threads side by side compute
// pixels side by side of one channel: they read neighbours of x, and the same weight of w [out, in, 3, 3].
__global__ void convolve(const float* x, const float* w, const float* bias, float* y, int in, int out, int rows,
                         int twice, Result result) {
  const int large = rows << twice;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < out * large * large; i += gridDim.x * blockDim.x) {
    const int channel = i / (large * large);
    float sum = bias ? bias[channel] : 0;
    for (int k = 0; k < 9; ++k) {
      const int row = i / large % large + k / 3 - 1;
      const int column = i % large + k % 3 - 1;
      if (row < 0 || row >= large || column < 0 || column >= large) continue;
      const float* pixel = x + (row >> twice) * rows + (column >> twice);
      for (int c = 0; c < in; ++c) sum += pixel[c * rows * rows] * w[(channel * in + c) * 9 + k];
    }
    if (result == relu) sum = fmaxf(sum, 0);
    y[i] = result == less_noise ? y[i] - sum / steps : sum;
  }
}
// All is queued in stream 0: copies, kernels and allocations happen in this order.
float* allocate(size_t numbers) {
  float* p = nullptr;
  CHECK(cudaMallocAsync(&p, numbers * sizeof(float), 0));
  return p;
}
void release(float* p) { CHECK(cudaFreeAsync(p, 0)); }
size_t peak(const char* stage) {  // the most bytes that were in use at any moment since the last call
  cudaMemPool_t pool = nullptr;
  size_t bytes = 0;
  size_t zero = 0;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &bytes));
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
  std::printf("%s %6.1f, ", stage, bytes / 1024.);
  return bytes;
}
struct Model {
  int numbers;
  float* host = nullptr;    // its weights, in pinned memory
  float* device = nullptr;  // the same on the device, while they are there
  Model(int n, unsigned seed, float largest = 0.1f) : numbers(n) {
    CHECK(cudaMallocHost(&host, numbers * sizeof(float)));
    for (int i = 0; i < numbers; ++i) host[i] = largest * pseudo_random(seed * 1000000 + i);
  }
  Model(const Model&) = delete;
  ~Model() { CHECK(cudaFreeHost(host)); }
  const float* load() {
    if (device) return device;
    device = allocate(numbers);
    CHECK(cudaMemcpyAsync(device, host, numbers * sizeof(float), cudaMemcpyHostToDevice, 0));
    return device;
  }
  void unload() {
    if (device) release(device);
    device = nullptr;
  }
};

struct Run {
  size_t peak = 0;  // bytes
  std::vector<float> image;
};
Run generate(Model& text_encoder, Model& denoiser, Model& decoder, const Model& noise, bool one_at_a_time) {
  Run run;
  const float* w = text_encoder.load();
  if (!one_at_a_time) denoiser.load();
  if (!one_at_a_time) decoder.load();
  float* vector = allocate(width);
  encode<<<blocks, threads>>>(w + word * width, w + vocabulary * width, vector);
  if (one_at_a_time) text_encoder.unload();  // THE MITIGATION: the next model gets its memory
  run.peak = peak("  encoding");

  w = denoiser.load();
  float* latents = allocate(latent * latent_pixels);
  float* h = allocate(width * latent_pixels);
  float* next = allocate(width * latent_pixels);
  CHECK(cudaMemcpyAsync(latents, noise.host, latent * latent_pixels * sizeof(float), cudaMemcpyHostToDevice, 0));
  for (int step = 0; step < steps; ++step) {
    convolve<<<blocks, threads>>>(latents, w, vector, h, latent, width, side, 0, relu);
    convolve<<<blocks, threads>>>(h, w + 9 * latent * width, nullptr, next, width, width, side, 0, relu);
    convolve<<<blocks, threads>>>(next, w + 9 * (latent + width) * width, nullptr, latents, width, latent, side, 0,
                                  less_noise);
  }
  for (float* p : {vector, h, next}) release(p);
  if (one_at_a_time) denoiser.unload();  // THE MITIGATION
  run.peak = std::max(run.peak, peak("denoising"));

  w = decoder.load();
  float* x = latents;
  int rows = side;
  for (int i = 0; i < layers; ++i) {
    const int large = rows << doubles[i];
    float* y = allocate(channels[i + 1] * large * large);
    const Result result = i + 1 < layers ? relu : plain;
    convolve<<<blocks, threads>>>(x, w, nullptr, y, channels[i], channels[i + 1], rows, doubles[i], result);
    release(x);
    x = y;
    w += 9 * channels[i] * channels[i + 1];
    rows = large;
  }
  CHECK(cudaGetLastError());  // of all launches
  run.image.resize(channels[layers] * rows * rows);
  CHECK(cudaMemcpy(run.image.data(), x, run.image.size() * sizeof(float), cudaMemcpyDeviceToHost));  // waits for all
  release(x);
  for (Model* model : {&text_encoder, &denoiser, &decoder}) model->unload();
  run.peak = std::max(run.peak, peak("decoding"));
  std::printf("%s: peak %6.1f KiB\n", one_at_a_time ? "one model at a time" : "all resident", run.peak / 1024.);
  return run;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  Model text_encoder((vocabulary + width) * width, 1);
  Model denoiser(9 * (latent + width + latent) * width, 2);
  Model decoder(9 * (4 * 64 + 64 * 32 + 32 * 16 + 16 * 16 + 16 * 3), 3);
  const Model noise(latent * latent_pixels, 4, 1);  // not weights, but from pinned memory, too
  Run all;
  Run one;
  if (without) all = generate(text_encoder, denoiser, decoder, noise, false);
  if (with) one = generate(text_encoder, denoiser, decoder, noise, true);
  if (with && without) {
    require(one.image == all.image && one.image.front() != one.image.back(), "an image, the same bit by bit");
    require(one.peak + denoiser.numbers * sizeof(float) < all.peak, "no weights of other models beside the decoder");
    std::puts("  the image is bit-equal");
  }
  std::puts("PASS");
}
