void accumulate(const float* x, const float* y, const float* w, int samples, int width, int micro, float* gradient) {
  float* r = nullptr;
  CHECK(cudaMalloc(&r, micro * sizeof(float)));
  CHECK(cudaMemset(gradient, 0, width * sizeof(float)));
  for (int first = 0; first < samples; first += micro) {
    const int rows = std::min(micro, samples - first);
    residuals<<<blocks, threads>>>(x + first * width, y + first, w, r, rows, width);
    add_gradient<<<blocks, threads>>>(x + first * width, r, gradient, rows, width, 2.0f / samples);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(r));
}
