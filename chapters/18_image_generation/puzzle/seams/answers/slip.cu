// FAILS: differs
void decode(const float* image, const float* w1, const float* w2, float* result, int height, int width) {
  float *x = nullptr, *h = nullptr, *y = nullptr;
  double* sums = nullptr;
  CHECK(cudaMalloc(&x, size_t(strip + 4) * width * sizeof(float)));
  CHECK(cudaMalloc(&h, size_t(strip + 2) * width * hidden * sizeof(float)));
  CHECK(cudaMalloc(&y, size_t(strip) * width * sizeof(float)));
  CHECK(cudaMalloc(&sums, 2 * sizeof(double)));
  CHECK(cudaMemset(sums, 0, 2 * sizeof(double)));
  for (const bool last_pass : {false, true}) {  // the first pass only adds up
    for (int top = 0; top < height; top += strip) {
      const int rows = std::min(strip, height - top);
      const int halo = 1;  // so a seam's rows are in two strips' sums
      const int h_begin = std::max(0, top - halo), h_end = std::min(height, top + rows + halo);
      const int x_begin = std::max(0, h_begin - 1), x_end = std::min(height, h_end + 1);
      const int n = (h_end - h_begin) * width * hidden;
      CHECK(cudaMemcpy(x, image + size_t(x_begin) * width, size_t(x_end - x_begin) * width * sizeof(float), cudaMemcpyHostToDevice));
      convolve<<<blocks, threads>>>(x, w1, h, 1, hidden, x_end - x_begin, width, h_begin - x_begin, h_end - x_begin);
      if (!last_pass) {
        add_sums<<<blocks, threads>>>(h, sums, n);
        continue;
      }
      normalise<<<blocks, threads>>>(h, sums, n, double(height) * width * hidden);
      convolve<<<blocks, threads>>>(h, w2, y, hidden, 1, h_end - h_begin, width, top - h_begin, top - h_begin + rows);
      CHECK(cudaGetLastError());
      CHECK(cudaMemcpy(result + size_t(top) * width, y, size_t(rows) * width * sizeof(float), cudaMemcpyDeviceToHost));
    }
  }
  for (void* p : {(void*)x, (void*)h, (void*)y, (void*)sums}) CHECK(cudaFree(p));
}
