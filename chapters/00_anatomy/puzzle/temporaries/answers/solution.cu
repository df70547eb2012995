__global__ void fused(float* w, const float* g, float* m, float* v, int n, float correction1, float correction2, float rate, float decay) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    m[i] = b1 * m[i] + (1 - b1) * g[i];
    v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
    const float corrected_m = m[i] / correction1;
    const float corrected_v = v[i] / correction2;
    w[i] -= rate * (corrected_m / (sqrtf(corrected_v) + eps) + decay * w[i]);
  }
}

void adamw(float* w, const float* g, float* m, float* v, int n, int t, float rate, float decay) {
  fused<<<blocks, threads>>>(w, g, m, v, n, 1 - std::pow(b1, t), 1 - std::pow(b2, t), rate, decay);
  CHECK(cudaGetLastError());
}
