// FAILS: input_changed
__global__ void update(float* w, const float* g, signed char* codes, float* scales, int n, float rate, float beta) {
  const int first = blockIdx.x * group;
  float* m = const_cast<float*>(g) + blockIdx.x * group;
  const int count = n - first < group ? n - first : group;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    m[i] = beta * codes[first + i] * scales[blockIdx.x] + g[first + i];
    w[first + i] -= rate * m[i];
  }
  __syncthreads();
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(m[i]));
  const float scale = largest > 0 ? largest / 127 : 1;
  for (int i = threadIdx.x; i < count; i += blockDim.x) codes[first + i] = (signed char)rintf(m[i] / scale);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}
