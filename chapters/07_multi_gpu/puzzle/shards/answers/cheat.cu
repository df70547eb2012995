// FAILS: largest
void train(float* const* w, const float* const* g, int ranks, int n, int steps, float rate, float beta) {
  float* momentum = nullptr;  // one rank has all of it, and the others wait
  CHECK(cudaMalloc(&momentum, n * sizeof(float)));
  CHECK(cudaMemset(momentum, 0, n * sizeof(float)));
  for (int s = 0; s < steps; ++s) {
    scale<<<blocks, threads>>>(momentum, n, beta);
    for (int r = 0; r < ranks; ++r) add<<<blocks, threads>>>(g[r], momentum, n, 1.0f / ranks);
    add<<<blocks, threads>>>(momentum, w[0], n, -rate);
  }
  for (int r = 1; r < ranks; ++r) CHECK(cudaMemcpy(w[r], w[0], n * sizeof(float), cudaMemcpyDeviceToDevice));
  CHECK(cudaFree(momentum));
}
