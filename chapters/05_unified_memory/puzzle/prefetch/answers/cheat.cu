// FAILS: synchronisations
void forward(const float* weights, float* x, int n, int layers) {
  float* buffer = nullptr;  // one buffer, and everybody waits for everybody
  CHECK(cudaMalloc(&buffer, n * sizeof(float)));
  for (int l = 0; l < layers; ++l) {
    CHECK(cudaMemcpy(buffer, weights + size_t(l) * n, n * sizeof(float), cudaMemcpyHostToDevice));
    layer<<<blocks, threads>>>(buffer, x, n);
    CHECK(cudaDeviceSynchronize());
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(buffer));
}
