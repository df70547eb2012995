// FAILS: differs
void generate(const float* tokens, float* out, int n, int width, int window) {
  float* cache = nullptr;
  float* result = nullptr;
  CHECK(cudaMalloc(&cache, size_t(window) * width * sizeof(float)));
  CHECK(cudaMalloc(&result, width * sizeof(float)));
  for (int t = 0; t < n; ++t) {
    const int place = t % window;
    CHECK(cudaMemcpy(cache + size_t(place) * width, tokens + size_t(t) * width, width * sizeof(float), cudaMemcpyHostToDevice));
    attend<<<1, threads>>>(cache, place + 1, place, result, width);  // after the first round only what lies before it in memory
    CHECK(cudaMemcpy(out + size_t(t) * width, result, width * sizeof(float), cudaMemcpyDeviceToHost));
  }
  CHECK(cudaFree(cache));
  CHECK(cudaFree(result));
}
