// FAILS: over_budget
void accumulate(const float* x, const float* y, const float* w, int samples, int width, int micro, float* gradient) {
  float* r = nullptr;
  CHECK(cudaMalloc(&r, std::max(samples, micro) * sizeof(float)));  // all in one go: right, and as large as before
  CHECK(cudaMemset(gradient, 0, width * sizeof(float)));
  residuals<<<blocks, threads>>>(x, y, w, r, samples, width);
  add_gradient<<<blocks, threads>>>(x, r, gradient, samples, width, 2.0f / samples);
  CHECK(cudaFree(r));
}
