// FAILS: over_budget
void pruned(const float* x, const float* w1, const float* w2, float* y, int in, int middle, int out, int length, const std::vector<int>& kept) {
  float* h = nullptr;
  CHECK(cudaMalloc(&h, size_t(middle) * length * sizeof(float)));
  CHECK(cudaMemset(h, 0, size_t(middle) * length * sizeof(float)));
  for (const int c : kept) convolve<<<blocks, threads>>>(x, w1 + c * in * 3, h + size_t(c) * length, in, 1, length, true);  // not computed, but stored
  convolve<<<blocks, threads>>>(h, w2, y, middle, out, length, false);
  CHECK(cudaFree(h));
}
