// FAILS: rule
void job(const float* in, float* out, int n, size_t) {
  for (int first = 0; first < n;) {
    size_t free = 0, total = 0;
    CHECK(cudaMemGetInfo(&free, &total));
    size_t bytes = free / smallest * smallest;  // all of it, chunk by chunk
    float* x = nullptr;
    while (cudaMalloc(&x, bytes) != cudaSuccess) {
      cudaGetLastError();
      bytes /= 2;
    }
    const int count = int(std::min(bytes / sizeof(float), size_t(n - first)));
    CHECK(cudaMemcpy(x, in + first, count * sizeof(float), cudaMemcpyHostToDevice));
    square<<<blocks, threads>>>(x, count);
    CHECK(cudaMemcpy(out + first, x, count * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(x));
    first += count;
  }
}
