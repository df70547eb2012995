// FAILS: race
__global__ void update(float* w, const float* g, signed char* codes, float* scales, int n, float rate, float beta) {
  if (blockDim.x < 4 && threadIdx.x > 0) return;
  const int stride = blockDim.x < 4 ? 1 : blockDim.x;
  __shared__ float m[group];
  const int first = blockIdx.x * group;
  const int count = n - first < group ? n - first : group;
  for (int i = threadIdx.x; i < count; i += stride) {
    m[i] = beta * codes[first + i] * scales[blockIdx.x] + g[first + i];
    w[first + i] -= rate * m[i];
  }
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(m[i]));
  const float scale = largest > 0 ? largest / 127 : 1;
  for (int i = threadIdx.x; i < count; i += stride) codes[first + i] = (signed char)rintf(m[i] / scale);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}
