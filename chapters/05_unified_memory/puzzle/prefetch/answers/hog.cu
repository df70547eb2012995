// FAILS: over_budget
void forward(const float* weights, float* x, int n, int layers) {
  float* all = nullptr;  // no race, and no budget either
  CHECK(cudaMalloc(&all, size_t(layers) * n * sizeof(float)));
  CHECK(cudaMemcpy(all, weights, size_t(layers) * n * sizeof(float), cudaMemcpyHostToDevice));
  for (int l = 0; l < layers; ++l) layer<<<blocks, threads>>>(all + size_t(l) * n, x, n);
  CHECK(cudaFree(all));
}
