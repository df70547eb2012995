// nvcc -o lesson lesson.cu -lcublas
//
// The size of the input. A 3 x 3 convolution makes each output pixel from the 3 x 3 input pixels around it. One way to
// compute it, im2col (image to columns), copies what each output pixel sees into a row of a matrix, the column matrix,
// and multiplies that by the weights. So every number of the image is copied 9 times. From 3 channels to 16:
//     weights          4 bytes * 9 * 3 * 16               1.7 KiB, for an image of any size
//     image            4 bytes * 3      for each pixel
//     column matrix    4 bytes * 9 * 3  for each pixel    9 times the image, the largest of the three
//     result           4 bytes * 16     for each pixel    together 184 bytes for each pixel
// Fewer pixels need less: 224 x 224 is 5.22 times fewer than 512 x 512, but gives another result. A strip of rows at a
// time needs less, too. Its first row also sees the row above it, and its last row sees the one below. These two rows,
// the strip's halo, are copied with it. Then the result is that of the whole image.
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

constexpr int in = 3, out = 16, window = 9 * in, large = 512, small = 224, strip = 32, blocks = 1024, threads = 256;
using Numbers = std::vector<float>;  // on the host, channels last: images are [side, side, in], weights [out, 3, 3, in]

void require(bool good, const char* what) {
  if (!good) std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError())), std::exit(1);
}
#define CHECK(call) require(int(call) == 0, #call)  // cudaSuccess and CUBLAS_STATUS_SUCCESS are 0

// The column matrix of `rows` output rows, from row `first` on. Around the image of height x width pixels are zeros.
__global__ void im2col(const float* image, float* columns, int height, int width, int first, int rows) {
  const size_t n = size_t(rows) * width * window;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int pixel = i / window, k = i % window;
    const int y = first + pixel / width + k / in / 3 - 1, x = pixel % width + k / in % 3 - 1;
    const bool inside = y >= 0 && y < height && x >= 0 && x < width;
    columns[i] = inside ? image[(size_t(y) * width + x) * in + k % in] : 0;
  }
}
// Bilinear: a new pixel is a weighted mean of the four old ones around its centre. Only makes images smaller.
__global__ void resize(const float* old, int old_side, float* image, int side) {
  const int row = old_side * in, n = side * side * in;
  const float scale = float(old_side) / side;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float y = (i / in / side + 0.5f) * scale - 0.5f, x = (i / in % side + 0.5f) * scale - 0.5f;
    const float b = y - int(y), r = x - int(x), *p = old + int(y) * row + int(x) * in + i % in;  // b: below, r: right
    image[i] = (1 - b) * ((1 - r) * p[0] + r * p[in]) + b * ((1 - r) * p[row] + r * p[row + in]);
  }
}

constexpr double MiB = 1 << 20;
size_t live, peak;  // bytes of all Buffers, now and at most
struct Buffer {     // on the device
  float* p = nullptr;
  size_t bytes;
  explicit Buffer(size_t n) : bytes(n * sizeof(float)) {
    CHECK(cudaMalloc(&p, bytes));
    peak = std::max(peak, live += bytes);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { CHECK(cudaFree(p)), live -= bytes; }
};
void copy(float* to, const float* from, size_t n) { CHECK(cudaMemcpy(to, from, n * sizeof(float), cudaMemcpyDefault)); }

// What a picture of side x side pixels should show. Colours change evenly, so that a resized picture can be checked.
float scene(int side, int y, int x, int channel) { return ((y + 0.5f) * (channel + 1) - (x + 0.5f)) / side / in; }
Numbers resized(const Numbers& old, int old_side, int side) {
  Numbers image(side * side * in);
  Buffer from(old.size()), to(image.size());
  copy(from.p, old.data(), old.size());
  resize<<<blocks, threads>>>(from.p, old_side, to.p, side), CHECK(cudaPeekAtLastError());
  copy(image.data(), to.p, image.size());
  std::printf("  resizing to %d x %d %41.2f MiB\n", side, side, std::exchange(peak, 0) / MiB);
  return image;
}

cublasHandle_t cublas;
Numbers weights(out * 9 * in);
// Image and result are on the host; the device holds `rows` rows of y, and the halo more of x. Returns the peak bytes.
size_t convolve(const Numbers& image, int side, int rows, Numbers& y) {
  const int x_row = side * in, y_row = side * out;
  Buffer w(weights.size()), x(std::min(rows + 2, side) * x_row), columns(9 * rows * x_row), result(rows * y_row);
  copy(w.p, weights.data(), weights.size());
  y.resize(side * y_row);
  for (int first = 0; first < side; first += rows) {
    const int count = std::min(rows, side - first);
    int top = first, bottom = first + count;
    top = std::max(top - 1, 0), bottom = std::min(bottom + 1, side);  // THE MITIGATION: the strip's halo
    copy(x.p, &image[top * x_row], (bottom - top) * x_row);
    im2col<<<blocks, threads>>>(x.p, columns.p, bottom - top, side, first - top, count), CHECK(cudaPeekAtLastError());
    const float one = 1, zero = 0;  // cuBLAS stores by columns: what is a row here is a column there
    CHECK(cublasSgemm(cublas, CUBLAS_OP_T, CUBLAS_OP_N, out, count * side, window, &one, w.p, window, columns.p, window,
                      &zero, result.p, out));
    copy(&y[first * y_row], result.p, count * y_row);
  }
  for (size_t i = 0; i < y.size(); i += 13) {  // a number or two of each pixel, against sums on the host
    double sum = 0;
    for (int k = 0; k < window; ++k) {
      const int row = i / out / side + k / in / 3 - 1, column = i / out % side + k / in % 3 - 1;
      const bool inside = row >= 0 && row < side && column >= 0 && column < side;
      if (inside) sum += double(weights[i % out * window + k]) * scene(side, row, column, k % in);
    }
    require(std::fabs(y[i] - sum) < 1e-5, "the convolution of what the picture shows");
  }
  require(columns.bytes > x.bytes && columns.bytes > result.bytes, "the column matrix is the largest tensor");
  std::printf("  %d x %d, %3d rows at a time %7.2f %8.2f %7.2f %8.2f MiB\n", side, side, rows, x.bytes / MiB,
              columns.bytes / MiB, result.bytes / MiB, peak / MiB);
  return std::exchange(peak, 0);
}

int main() {
  CHECK(cublasCreate(&cublas));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = (int(i * 7919 % 1021) - 510) / 510.0f;
  std::printf("3 x 3 convolution, 3 to 16 channels  image  columns  result     peak\n");
  Numbers image(large * large * in), whole, strips, smaller;
  for (int i = 0; i < large * large * in; ++i) image[i] = scene(large, i / in / large, i / in % large, i % in);
  int rows = large, side = large;
  const size_t peak_whole = convolve(image, side, rows, whole);
  rows = strip;  // THE MITIGATION: a strip of rows at a time
  const size_t peak_strips = convolve(image, side, rows, strips);
  image = resized(image, large, side = small);  // THE MITIGATION: fewer pixels
  const size_t peak_small = convolve(image, side, side, smaller), fixed = weights.size() * sizeof(float);
  const double times = double(peak_whole - fixed) / (peak_small - fixed);
  std::printf("  %d x %d takes %.2f times less, but for %zu bytes of weights\n", small, small, times, fixed);
  std::printf("  the result in strips: %s\n", whole == strips ? "bit-equal" : "equal within 1e-5");
  CHECK(cublasDestroy(cublas));
  require((peak_strips - fixed) * large <= (peak_whole - fixed) * (strip + 2), "strips take their share of the memory");
  require((peak_whole - fixed) * small * small == (peak_small - fixed) * large * large, "bytes grow with the pixels");
  std::puts("PASS");
}
