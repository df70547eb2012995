// FAILS: over_budget
void adamw(float* w, const float* g, float* m, float* v, int n, int t, float rate, float decay) {
  moments<<<blocks, threads>>>(g, m, v, n);
  float* corrected = nullptr;  // one array instead of two
  CHECK(cudaMalloc(&corrected, n * sizeof(float)));
  divide<<<blocks, threads>>>(m, 1 - std::pow(b1, t), corrected, n);
  apply<<<blocks, threads>>>(corrected, v, w, n, rate, decay);
  CHECK(cudaFree(corrected));
}
