// FAILS: threw
// A whole row of scores in shared memory, where a short one fits.
__global__ void attend_row(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  extern __shared__ float score[];
  const int row = blockIdx.x;
  float largest = -INFINITY;
  for (int j = 0; j < n; ++j) {
    score[j] = -INFINITY;
    if (!mask[row / block * (n / block) + j / block]) continue;
    float dot = 0;
    for (int c = 0; c < d; ++c) dot += q[row * d + c] * k[j * d + c];
    score[j] = dot / sqrtf(float(d));
    largest = fmaxf(largest, score[j]);
  }
  for (int c = 0; c < d; ++c) {
    float sum = 0, value = 0;
    for (int j = 0; j < n; ++j) {
      if (!(score[j] > -INFINITY)) continue;
      sum += expf(score[j] - largest);
      value += expf(score[j] - largest) * v[j * d + c];
    }
    out[row * d + c] = sum > 0 ? value / sum : 0;
  }
}

void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  attend_row<<<n, 1, n * sizeof(float)>>>(q, k, v, mask, out, n, d);
  CHECK(cudaGetLastError());
}
