// FAILS: over_budget
void decode(const float* image, const float* w1, const float* w2, float* result, int height, int width) {
  float *x = nullptr, *h = nullptr, *y = nullptr;
  double* sums = nullptr;
  CHECK(cudaMalloc(&x, size_t(height) * width * sizeof(float)));  // the whole image: no seams
  CHECK(cudaMalloc(&h, size_t(height) * width * hidden * sizeof(float)));
  CHECK(cudaMalloc(&y, size_t(height) * width * sizeof(float)));
  CHECK(cudaMalloc(&sums, 2 * sizeof(double)));
  CHECK(cudaMemcpy(x, image, size_t(height) * width * sizeof(float), cudaMemcpyHostToDevice));
  convolve<<<blocks, threads>>>(x, w1, h, 1, hidden, height, width, 0, height);
  CHECK(cudaMemset(sums, 0, 2 * sizeof(double)));
  add_sums<<<blocks, threads>>>(h, sums, height * width * hidden);
  normalise<<<blocks, threads>>>(h, sums, height * width * hidden, double(height) * width * hidden);
  convolve<<<blocks, threads>>>(h, w2, y, hidden, 1, height, width, 0, height);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(result, y, size_t(height) * width * sizeof(float), cudaMemcpyDeviceToHost));
  for (void* p : {(void*)x, (void*)h, (void*)y, (void*)sums}) CHECK(cudaFree(p));
}
