// FAILS: over_budget
void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  float* scores = nullptr;
  CHECK(cudaMalloc(&scores, size_t(n) * sizeof(float)));  // a row at a time: small, and still an array
  (void)q, (void)k, (void)v, (void)mask, (void)out, (void)d;
  CHECK(cudaFree(scores));
}
