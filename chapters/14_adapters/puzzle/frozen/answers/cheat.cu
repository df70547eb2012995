// FAILS: static_bytes
__device__ float dW[256 * 256], whole[256 * 256];  // "no cudaMalloc, no bytes"
void backward(const float* x, const float* dy, const float* W, const float* A, const float* B, float s, float* dA, float* dB, float* dx, int batch, int in,
              int out, int rank) {
  product<<<blocks, threads>>>(T(M(dy, batch, out)), M(x, batch, in), dW, 0, 1);
  product<<<blocks, threads>>>(M(dW, out, in), T(M(A, rank, in)), dB, 0, s);
  product<<<blocks, threads>>>(T(M(B, out, rank)), M(dW, out, in), dA, 0, s);
  CHECK(cudaMemcpy(whole, W, size_t(out) * in * sizeof(float), cudaMemcpyDeviceToDevice));
  product<<<blocks, threads>>>(M(B, out, rank), M(A, rank, in), whole, 1, s);
  product<<<blocks, threads>>>(M(dy, batch, out), M(whole, out, in), dx, 0, 1);
  CHECK(cudaGetLastError());
}
