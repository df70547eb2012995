// FAILS: host_bytes
#include <vector>
void decode(const float* image, const float* w1, const float* w2, float* result, int height, int width) {
  float *x = nullptr, *h = nullptr, *y = nullptr;
  double* sums = nullptr;
  std::vector<float> kept(size_t(height) * width * hidden);  // the feature map waits on the host, and no convolution runs twice
  CHECK(cudaMalloc(&x, size_t(strip + 2) * width * sizeof(float)));
  CHECK(cudaMalloc(&h, size_t(strip + 2) * width * hidden * sizeof(float)));
  CHECK(cudaMalloc(&y, size_t(strip) * width * sizeof(float)));
  CHECK(cudaMalloc(&sums, 2 * sizeof(double)));
  CHECK(cudaMemset(sums, 0, 2 * sizeof(double)));
  for (int top = 0; top < height; top += strip) {
    const int rows = std::min(strip, height - top), begin = std::max(0, top - 1), end = std::min(height, top + rows + 1);
    CHECK(cudaMemcpy(x, image + size_t(begin) * width, size_t(end - begin) * width * sizeof(float), cudaMemcpyHostToDevice));
    convolve<<<blocks, threads>>>(x, w1, h, 1, hidden, end - begin, width, top - begin, top - begin + rows);
    add_sums<<<blocks, threads>>>(h, sums, rows * width * hidden);
    CHECK(cudaMemcpy(&kept[size_t(top) * width * hidden], h, size_t(rows) * width * hidden * sizeof(float), cudaMemcpyDeviceToHost));
  }
  for (int top = 0; top < height; top += strip) {
    const int rows = std::min(strip, height - top), begin = std::max(0, top - 1), end = std::min(height, top + rows + 1);
    CHECK(cudaMemcpy(h, &kept[size_t(begin) * width * hidden], size_t(end - begin) * width * hidden * sizeof(float), cudaMemcpyHostToDevice));
    normalise<<<blocks, threads>>>(h, sums, (end - begin) * width * hidden, double(height) * width * hidden);
    convolve<<<blocks, threads>>>(h, w2, y, hidden, 1, end - begin, width, top - begin, top - begin + rows);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(result + size_t(top) * width, y, size_t(rows) * width * sizeof(float), cudaMemcpyDeviceToHost));
  }
  for (void* p : {(void*)x, (void*)h, (void*)y, (void*)sums}) CHECK(cudaFree(p));
}
