// FAILS: over_budget
__global__ void find_range(const float* w, int width, float* low, float* high) {
  const int row = blockIdx.x;
  low[row] = high[row] = 0;
  for (int i = 0; i < width; ++i) low[row] = fminf(low[row], w[row * width + i]);
  for (int i = 0; i < width; ++i) high[row] = fmaxf(high[row], w[row * width + i]);
}
void quantise(const float* w, int rows, int width, unsigned char*, float* scales, unsigned char*) {
  float* low = nullptr;  // the ranges in an array between two kernels
  CHECK(cudaMalloc(&low, rows * sizeof(float)));
  find_range<<<rows, 1>>>(w, width, low, scales);
  CHECK(cudaFree(low));
}
