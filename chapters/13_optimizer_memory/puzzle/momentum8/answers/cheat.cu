// FAILS: differs
__global__ void update(float* w, const float* g, signed char*, float*, int n, float rate, float) {
  const int first = blockIdx.x * group;
  for (int i = threadIdx.x; i < (n - first < group ? n - first : group); i += blockDim.x) w[first + i] -= rate * g[first + i];  // no momentum: nothing to store
}
