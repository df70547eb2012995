// FAILS: host_arrays
__global__ void one(int row, const float* q, const float* k, const unsigned char* mask, const float* v, float* out, int n, int d) {
  float s[4096];
  for (int c = threadIdx.x; c < d; c += blockDim.x) {
    float largest = -INFINITY, sum = 0, value = 0;
    for (int j = 0; j < n; ++j) {
      float dot = 0;
      for (int e = 0; e < d; ++e) dot += q[row * d + e] * k[j * d + e];
      s[j] = mask[row / block * (n / block) + j / block] ? dot / sqrtf(float(d)) : -INFINITY;
      largest = fmaxf(largest, s[j]);
    }
    for (int j = 0; j < n && largest > -INFINITY; ++j) { const float e = expf(s[j] - largest); sum += e; value += e * v[j * d + c]; }
    out[row * d + c] = sum > 0 ? value / sum : 0;
  }
}
void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  for (int r = 0; r < n; ++r) one<<<1, threads>>>(r, q, k, mask, v, out, n, d);
  CHECK(cudaGetLastError());
}
