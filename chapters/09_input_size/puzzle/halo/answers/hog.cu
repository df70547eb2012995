// FAILS: over_budget
void blur(const float* image, float* result, int height, int width, int radius) {
  float* in = nullptr;
  float* out = nullptr;
  CHECK(cudaMalloc(&in, size_t(height) * width * sizeof(float)));  // the whole image, and no seams
  CHECK(cudaMalloc(&out, size_t(height) * width * sizeof(float)));
  CHECK(cudaMemcpy(in, image, size_t(height) * width * sizeof(float), cudaMemcpyHostToDevice));
  blur_rows<<<blocks, threads>>>(in, out, height, width, 0, height, radius);
  CHECK(cudaMemcpy(result, out, size_t(height) * width * sizeof(float), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(in));
  CHECK(cudaFree(out));
}
