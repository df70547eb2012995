// FAILS: over_budget
void job(const float* in, float* out, int n, size_t reserve) {
  for (int first = 0; first < n;) {
    size_t free = 0, total = 0;
    CHECK(cudaMemGetInfo(&free, &total));
    const size_t bytes = free > reserve + smallest ? (free - reserve) / smallest * smallest : smallest;
    float* x = nullptr;
    CHECK(cudaMalloc(&x, bytes));  // what was free when it asked is believed to be free still
    const int count = int(std::min(bytes / sizeof(float), size_t(n - first)));
    CHECK(cudaMemcpy(x, in + first, count * sizeof(float), cudaMemcpyHostToDevice));
    square<<<blocks, threads>>>(x, count);
    CHECK(cudaMemcpy(out + first, x, count * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(x));
    first += count;
  }
}
