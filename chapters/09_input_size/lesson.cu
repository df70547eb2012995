// nvcc -o lesson lesson.cu -lcublas
//
// The size of the input. A 3 x 3 convolution makes each output pixel from the 3 x 3 input pixels around it. One way to
// compute it, im2col (image to columns), copies what each output pixel sees into a row of a matrix, the column matrix,
// and multiplies that by the weights. So every number of the image is copied 9 times. From 3 channels to 16:
//     weights          4 bytes * 9 * 3 * 16               1.7 KiB, for an image of any size
//     image            4 bytes * 3      for each pixel
//     column matrix    4 bytes * 9 * 3  for each pixel    9 times the image, the largest of the three
//     result           4 bytes * 16     for each pixel    together 184 bytes for each pixel
// A strip of rows at a time needs the memory of a strip. Its first output row also sees the input row above it, and its
// last one the row below. These two rows, the strip's halo, are copied with it. Then the result is that of the whole
// image. The price: with 32 rows a strip, one row of the image in 16 is copied twice, and products are smaller.
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int in = 3;              // channels of the image
constexpr int out = 16;            // channels of the result
constexpr int patch = 3 * 3 * in;  // numbers that an output pixel sees
constexpr int side = 512;          // rows of the image, and pixels of a row
constexpr int strip = 32;          // rows of the result at a time
constexpr int blocks = 1024;
constexpr int threads = 256;
static_assert(side % strip == 0, "whole strips");
using Numbers = std::vector<float>;  // on the host, channels last: images are [side, side, in], weights [out, 3, 3, in]

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)

// The column matrix [rows * side, 3, 3, in] of `rows` output rows. `seen` are the rows of the image that they see, with
// `above` (0 or 1) above the first; beyond are zeros. Threads side by side write numbers side by side, 32 at once.
__global__ void im2col(const float* seen, float* columns, int seen_rows, int above, int rows) {
  const int n = rows * side * patch;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int channel = i % in;
    const int kx = i / in % 3;  // 0, 1, 2: the pixel to the left, this one, the one to the right
    const int ky = i / in / 3 % 3;
    const int pixel = i / patch;
    const int y = above + pixel / side + ky - 1;
    const int x = pixel % side + kx - 1;
    const bool inside = y >= 0 && y < seen_rows && x >= 0 && x < side;
    columns[i] = inside ? seen[(y * side + x) * in + channel] : 0;
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
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    CHECK(cudaFree(p));  // waits for kernels that still use p
    live -= bytes;
  }
};
void to_device(float* to, const float* from, size_t n) {
  CHECK(cudaMemcpy(to, from, n * sizeof(float), cudaMemcpyHostToDevice));
}
void to_host(float* to, const float* from, size_t n) {
  CHECK(cudaMemcpy(to, from, n * sizeof(float), cudaMemcpyDeviceToHost));
}

struct Run {
  size_t peak = 0;  // bytes
  Numbers result = Numbers(side * side * out);
};
cublasHandle_t cublas;
// Image and result are on the host. The device holds some rows of the result, and what these see of the image. A copy
// waits for all that was queued before it; chapter 05 shows how copies run beside kernels.
Run convolve(const Numbers& image, const Numbers& weights, bool in_strips) {
  Run run;
  peak = 0;
  int rows = side;              // of the result, at a time
  if (in_strips) rows = strip;  // THE MITIGATION: a strip of rows
  const int image_row = side * in;
  const int result_row = side * out;
  Buffer w(weights.size());
  Buffer x(std::min(rows + 2, side) * image_row);
  Buffer columns(rows * side * patch);
  Buffer result(rows * result_row);
  to_device(w.p, weights.data(), weights.size());
  for (int first = 0; first < side; first += rows) {
    int top = first;                      // the first row of the image that the strip sees
    int bottom = first + rows;            // the one after its last
    top = std::max(top - 1, 0);           // THE MITIGATION: the strip's halo, above
    bottom = std::min(bottom + 1, side);  // THE MITIGATION: and below
    to_device(x.p, &image[top * image_row], (bottom - top) * image_row);
    im2col<<<blocks, threads>>>(x.p, columns.p, bottom - top, first - top, rows);
    CHECK(cudaGetLastError());
    const float one = 1;
    const float zero = 0;  // result = columns @ w.T; cuBLAS is column-major, so it computes result^T = w @ columns^T
    CHECK(cublasSgemm(cublas, CUBLAS_OP_T, CUBLAS_OP_N, out, rows * side, patch, &one, w.p, patch, columns.p, patch,
                      &zero, result.p, out));
    to_host(&run.result[first * result_row], result.p, rows * result_row);
  }
  run.peak = peak;
  const size_t rows_seen = std::min(rows + 2, side);
  const size_t numbers = weights.size() + rows_seen * image_row + size_t(rows) * (side * patch + result_row);
  require(peak == numbers * sizeof(float), "the bytes of weights, image, columns and result");
  constexpr double MiB = 1 << 20;
  std::printf("  %d x %d, %3d rows at a time %7.2f %8.2f %7.2f %8.2f MiB\n", side, side, rows, x.bytes / MiB,
              columns.bytes / MiB, result.bytes / MiB, peak / MiB);
  require(columns.bytes > x.bytes && columns.bytes > result.bytes, "the column matrix is the largest tensor");
  return run;
}

// One number of the result, computed on the host.
double expected(const Numbers& image, const Numbers& weights, int y, int x, int channel) {
  double sum = 0;
  for (int ky = 0; ky < 3; ++ky) {
    for (int kx = 0; kx < 3; ++kx) {
      const int row = y + ky - 1;
      const int column = x + kx - 1;
      if (row < 0 || row >= side || column < 0 || column >= side) continue;
      const float* pixel = &image[(row * side + column) * in];
      const float* weight = &weights[((channel * 3 + ky) * 3 + kx) * in];
      for (int c = 0; c < in; ++c) sum += double(pixel[c]) * weight[c];
    }
  }
  return sum;
}
void compare(const Run& run, const Numbers& image, const Numbers& weights) {
  for (int i = 0; i < side * side * out; i += 13) {  // a number or two of each pixel
    const int pixel = i / out;
    const double sum = expected(image, weights, pixel / side, pixel % side, i % out);
    require(std::fabs(run.result[i] - sum) < 1e-5, "the convolution of the image");
  }
}

float pseudo_random(unsigned i) {  // between -1 and 1
  const unsigned hash = (i + 1) * 2654435761u;
  return (hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  Numbers image(side * side * in);
  Numbers weights(out * patch);
  for (unsigned i = 0; i < image.size(); ++i) image[i] = pseudo_random(i);
  for (unsigned i = 0; i < weights.size(); ++i) weights[i] = pseudo_random((1 << 20) + i);
  std::printf("3 x 3 convolution, 3 to 16 channels  image  columns  result     peak\n");
  Run whole;
  Run strips;
  if (without) whole = convolve(image, weights, false);
  if (with) strips = convolve(image, weights, true);
  CHECK(cublasDestroy(cublas));
  if (without) compare(whole, image, weights);
  if (with) compare(strips, image, weights);
  if (with && without) {
    const bool equal = strips.result == whole.result;
    std::printf("  the result in strips: %s\n", equal ? "bit-equal" : "within 1e-5 of what the host computes");
    const size_t fixed = weights.size() * sizeof(float);
    require((strips.peak - fixed) * side <= (whole.peak - fixed) * (strip + 2), "(strip + 2) / side of it");
  }
  std::puts("PASS");
}
