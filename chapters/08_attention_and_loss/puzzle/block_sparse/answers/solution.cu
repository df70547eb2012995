__global__ void online(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  const int row = blockIdx.x;
  for (int c = threadIdx.x; c < d; c += blockDim.x) {  // a thread has one column of the row's result
    float largest = -INFINITY, sum = 0, value = 0;
    for (int first = 0; first < n; first += block) {
      if (!mask[row / block * (n / block) + first / block]) continue;
      for (int j = first; j < first + block; ++j) {
        float dot = 0;
        for (int i = 0; i < d; ++i) dot += q[row * d + i] * k[j * d + i];
        const float score = dot / sqrtf(float(d));
        const float larger = fmaxf(largest, score);
        const float correction = expf(largest - larger);  // 0 the first time: largest is -infinity
        const float e = expf(score - larger);
        sum = sum * correction + e;
        value = value * correction + e * v[j * d + c];
        largest = larger;
      }
    }
    out[row * d + c] = sum > 0 ? value / sum : 0;
  }
}

void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  online<<<n, threads>>>(q, k, v, mask, out, n, d);
  CHECK(cudaGetLastError());
}
