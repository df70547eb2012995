// FAILS: shared_overrun
__global__ void quantise_rows(const float* w, int width, unsigned char* codes, float* scales, unsigned char* zeros) {
  const int row = blockIdx.x;
  __shared__ float lo[threads], hi[threads];
  float lowest = 0, highest = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    lowest = fminf(lowest, w[row * width + i]);
    highest = fmaxf(highest, w[row * width + i]);
  }
  lo[threadIdx.x] = lowest;
  hi[threadIdx.x] = highest;
  for (int h = threads / 2; h > 0; h /= 2) {
    __syncthreads();
    if (threadIdx.x <= h) {
      lo[threadIdx.x] = fminf(lo[threadIdx.x], lo[threadIdx.x + h]);
      hi[threadIdx.x] = fmaxf(hi[threadIdx.x], hi[threadIdx.x + h]);
    }
  }
  __syncthreads();
  lowest = lo[0];
  highest = hi[0];
  const float scale = highest > lowest ? (highest - lowest) / 255 : 1;
  const float zero = rintf(-lowest / scale);
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    codes[row * width + i] = (unsigned char)(fminf(fmaxf(rintf(w[row * width + i] / scale) + zero, 0), 255));
  if (threadIdx.x == 0) {
    scales[row] = scale;
    zeros[row] = (unsigned char)zero;
  }
}
void quantise(const float* w, int rows, int width, unsigned char* codes, float* scales, unsigned char* zeros) {
  quantise_rows<<<rows, threads>>>(w, width, codes, scales, zeros);
  CHECK(cudaGetLastError());
}
