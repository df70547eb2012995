// FAILS: over_budget
__global__ void unscale(const __half* g, float* to, int n, float scale) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = float(g[i]) / scale;
}
void step(const __half* g, float* w, int n, float rate, float& scale, int&) {
  float* unscaled = nullptr;  // the gradients once more, in FP32
  CHECK(cudaMalloc(&unscaled, n * sizeof(float)));
  unscale<<<blocks, threads>>>(g, unscaled, n, scale);
  (void)w, (void)rate;
  CHECK(cudaFree(unscaled));
}
