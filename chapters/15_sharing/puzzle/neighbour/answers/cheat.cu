// FAILS: rule
void job(const float* in, float* out, int n, size_t) {
  float* x = nullptr;  // the smallest chunk always: polite, and slow
  CHECK(cudaMalloc(&x, smallest));
  const int most = int(smallest / sizeof(float));
  for (int first = 0; first < n; first += most) {
    const int count = std::min(most, n - first);
    CHECK(cudaMemcpy(x, in + first, count * sizeof(float), cudaMemcpyHostToDevice));
    square<<<blocks, threads>>>(x, count);
    CHECK(cudaMemcpy(out + first, x, count * sizeof(float), cudaMemcpyDeviceToHost));
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(x));
}
