// PASSES: a thread for each row, as many blocks as that takes
__global__ void online(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  float largest = -INFINITY, sum = 0;
  for (int c = 0; c < d; ++c) out[row * d + c] = 0;
  for (int j = 0; j < n; ++j) {
    if (!mask[row / block * (n / block) + j / block]) continue;
    float dot = 0;
    for (int c = 0; c < d; ++c) dot += q[row * d + c] * k[j * d + c];
    dot /= sqrtf(float(d));
    const float now = fmaxf(largest, dot), shrink = expf(largest - now), e = expf(dot - now);
    largest = now;
    sum = sum * shrink + e;
    for (int c = 0; c < d; ++c) out[row * d + c] = out[row * d + c] * shrink + e * v[j * d + c];
  }
  for (int c = 0; c < d; ++c) out[row * d + c] = sum > 0 ? out[row * d + c] / sum : 0;
}
void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  online<<<(n + threads - 1) / threads, threads>>>(q, k, v, mask, out, n, d);
  CHECK(cudaGetLastError());
}
