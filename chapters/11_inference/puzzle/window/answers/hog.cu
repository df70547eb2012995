// FAILS: over_budget
void generate(const float* tokens, float* out, int n, int width, int window) {
  float* cache = nullptr;  // twice the window: move the second half to the front when it is full
  float* result = nullptr;
  CHECK(cudaMalloc(&cache, size_t(2 * window) * width * sizeof(float)));
  CHECK(cudaMalloc(&result, width * sizeof(float)));
  (void)tokens, (void)out, (void)n;
  CHECK(cudaFree(cache));
  CHECK(cudaFree(result));
}
