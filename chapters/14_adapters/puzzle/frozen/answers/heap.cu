// FAILS: kernel_heap
__global__ void in_one_kernel(const float* x, const float* dy, const float* W, const float* A, const float* B, float s, float* dA, float* dB, float* dx, int batch, int in,
                              int out, int rank) {
  float* dW = new float[size_t(out) * in];
  float* whole = new float[size_t(out) * in];
  for (int i = 0; i < out; ++i)
    for (int j = 0; j < in; ++j) {
      float sum = 0, merged = W[i * in + j];
      for (int k = 0; k < batch; ++k) sum += dy[k * out + i] * x[k * in + j];
      for (int r = 0; r < rank; ++r) merged += s * B[i * rank + r] * A[r * in + j];
      dW[i * in + j] = sum;
      whole[i * in + j] = merged;
    }
  for (int i = 0; i < out; ++i)
    for (int r = 0; r < rank; ++r) {
      float sum = 0;
      for (int j = 0; j < in; ++j) sum += dW[i * in + j] * A[r * in + j];
      dB[i * rank + r] = s * sum;
    }
  for (int r = 0; r < rank; ++r)
    for (int j = 0; j < in; ++j) {
      float sum = 0;
      for (int i = 0; i < out; ++i) sum += B[i * rank + r] * dW[i * in + j];
      dA[r * in + j] = s * sum;
    }
  for (int k = 0; k < batch; ++k)
    for (int j = 0; j < in; ++j) {
      float sum = 0;
      for (int i = 0; i < out; ++i) sum += dy[k * out + i] * whole[i * in + j];
      dx[k * in + j] = sum;
    }
  delete[] dW;
  delete[] whole;
}

void backward(const float* x, const float* dy, const float* W, const float* A, const float* B, float s, float* dA, float* dB, float* dx, int batch, int in,
              int out, int rank) {
  in_one_kernel<<<1, 1>>>(x, dy, W, A, B, s, dA, dB, dx, batch, in, out, rank);
  CHECK(cudaGetLastError());
}
