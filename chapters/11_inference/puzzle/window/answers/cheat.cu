// FAILS: touched
void generate(const float* tokens, float* out, int n, int width, int window) {
  float* cache = nullptr;
  CHECK(cudaMalloc(&cache, size_t(window) * width * sizeof(float)));
  for (int i = 0; i < std::min(n, window) * width; ++i) cache[i] = tokens[i];  // no cudaMemcpy
  for (int t = 0; t < n; ++t) attend<<<1, threads>>>(cache, std::min(t + 1, window), t % window, cache, width);
  CHECK(cudaMemcpy(out, cache, size_t(width) * sizeof(float), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(cache));
}
