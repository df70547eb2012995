// FAILS: rule
__global__ void quantise_rows(const float* w, int width, unsigned char* codes, float* scales, unsigned char* zeros) {
  const int row = blockIdx.x;
  float lowest = 0, highest = 0;  // 0 is always in the range
  for (int i = 0; i < width; ++i) {
    lowest = fminf(lowest, w[row * width + i]);
    highest = fmaxf(highest, w[row * width + i]);
  }
  const float scale = highest > lowest ? (highest - lowest) / 255 : 1;
  const float zero = rintf(-lowest / scale);
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    codes[row * width + i] = (unsigned char)(rintf(w[row * width + i] / scale) + zero);
  if (threadIdx.x == 0) {
    scales[row] = scale;
    zeros[row] = (unsigned char)zero;
  }
}
void quantise(const float* w, int rows, int width, unsigned char* codes, float* scales, unsigned char* zeros) {
  quantise_rows<<<rows, threads>>>(w, width, codes, scales, zeros);
  CHECK(cudaGetLastError());
}
