// FAILS: not_to_be_read
__global__ void online(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  __shared__ float score[block];
  const int row = blockIdx.x;
  float largest = -INFINITY, sum = 0;
  for (int c = threadIdx.x; c < d; c += blockDim.x) out[row * d + c] = 0;
  for (int b = 0; b < n / block; ++b) {
    const bool looks = mask[row / block * (n / block) + b];
    __syncthreads();
    for (int i = threadIdx.x; i < block; i += blockDim.x) {
      float dot = 0;
      for (int c = 0; c < d; ++c) dot += q[row * d + c] * k[(b * block + i) * d + c];
      score[i] = looks ? dot / sqrtf(float(d)) : -INFINITY;
    }
    __syncthreads();
    float now = largest;
    for (int i = 0; i < block; ++i) now = fmaxf(now, score[i]);
    const float shrink = largest > -INFINITY ? expf(largest - now) : 0;
    largest = now;
    sum *= shrink;
    for (int i = 0; i < block; ++i) sum += (looks ? expf(score[i] - largest) : 0);
    for (int c = threadIdx.x; c < d; c += blockDim.x) {
      float total = out[row * d + c] * shrink;
      for (int i = 0; i < block; ++i) total += (looks ? expf(score[i] - largest) : 0) * v[(b * block + i) * d + c];
      out[row * d + c] = total;
    }
  }
  for (int c = threadIdx.x; c < d; c += blockDim.x) out[row * d + c] = sum > 0 ? out[row * d + c] / sum : 0;
}
void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  online<<<n, threads>>>(q, k, v, mask, out, n, d);
  CHECK(cudaGetLastError());
}
