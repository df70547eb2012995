// FAILS: static_bytes
__device__ float h[256 * 128], dh[256 * 128];  // "no cudaMalloc, no bytes"
void backward(const float* x, const float* dy, const float* W1, const float* W2, float* dx, float* dW1, float* dW2, int tokens, int width, int hidden) {
  product<<<blocks, threads>>>(M(x, tokens, width), M(W1, width, hidden), h, 0);
  relu<<<blocks, threads>>>(h, tokens * hidden);
  product<<<blocks, threads>>>(T(M(h, tokens, hidden)), M(dy, tokens, width), dW2, 0);
  product<<<blocks, threads>>>(M(dy, tokens, width), T(M(W2, hidden, width)), dh, 0);
  relu_backward<<<blocks, threads>>>(h, dh, tokens * hidden);
  product<<<blocks, threads>>>(T(M(x, tokens, width)), M(dh, tokens, hidden), dW1, 0);
  product<<<blocks, threads>>>(M(dh, tokens, hidden), T(M(W1, width, hidden)), dx, 0);
  CHECK(cudaGetLastError());
}
