void job(const float* in, float* out, int n, size_t reserve) {
  for (int first = 0; first < n;) {
    size_t free = 0, total = 0;
    CHECK(cudaMemGetInfo(&free, &total));
    size_t bytes = free > reserve + smallest ? (free - reserve) / smallest * smallest : smallest;
    float* x = nullptr;
    cudaError_t error = cudaMalloc(&x, bytes);
    while (error == cudaErrorMemoryAllocation && bytes > smallest) {  // somebody was faster
      cudaGetLastError();
      bytes = std::max(smallest, bytes / 2 / smallest * smallest);
      error = cudaMalloc(&x, bytes);
    }
    CHECK(error);
    const int count = int(std::min(bytes / sizeof(float), size_t(n - first)));
    CHECK(cudaMemcpy(x, in + first, count * sizeof(float), cudaMemcpyHostToDevice));
    square<<<blocks, threads>>>(x, count);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(out + first, x, count * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(x));
    first += count;
  }
}
