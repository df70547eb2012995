__global__ void quantise_rows(const float* w, int width, unsigned char* codes, float* scales, unsigned char* zeros) {
  __shared__ float low[threads];
  __shared__ float high[threads];
  const int row = blockIdx.x;
  low[threadIdx.x] = 0;  // 0 is always in the range
  high[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    low[threadIdx.x] = fminf(low[threadIdx.x], w[row * width + i]);
    high[threadIdx.x] = fmaxf(high[threadIdx.x], w[row * width + i]);
  }
  __syncthreads();
  float lowest = 0, highest = 0;
  for (unsigned t = 0; t < blockDim.x; ++t) {
    lowest = fminf(lowest, low[t]);
    highest = fmaxf(highest, high[t]);
  }
  const float scale = highest > lowest ? (highest - lowest) / 255 : 1;
  const float zero = rintf(-lowest / scale);
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    codes[row * width + i] = (unsigned char)(fminf(fmaxf(rintf(w[row * width + i] / scale) + zero, 0), 255));
  if (threadIdx.x == 0) {
    scales[row] = scale;
    zeros[row] = (unsigned char)(zero);
  }
}
void quantise(const float* w, int rows, int width, unsigned char* codes, float* scales, unsigned char* zeros) {
  quantise_rows<<<rows, threads>>>(w, width, codes, scales, zeros);
  CHECK(cudaGetLastError());
}
