// FAILS: differs
__global__ void online(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  const int row = blockIdx.x;
  for (int c = threadIdx.x; c < d; c += blockDim.x) {
    float largest = -INFINITY, sum = 0, value = 0;
    for (int j = 0; j < n; ++j) {
      if (!mask[row / block * (n / block) + j / block]) continue;
      float dot = 0;
      for (int i = 0; i < d; ++i) dot += q[row * d + i] * k[j * d + i];
      const float score = dot / sqrtf(float(d));
      const float larger = fmaxf(largest, score);
      const float e = expf(score - larger);
      sum = sum * expf(largest - larger) + e;
      value += e * v[j * d + c];  // what was summed up before is not rescaled
      largest = larger;
    }
    out[row * d + c] = sum > 0 ? value / sum : 0;
  }
}
void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  online<<<n, threads>>>(q, k, v, mask, out, n, d);
  CHECK(cudaGetLastError());
}
