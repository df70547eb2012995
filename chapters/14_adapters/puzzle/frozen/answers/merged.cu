// FAILS: input_changed
void backward(const float* x, const float* dy, const float* W, const float* A, const float* B, float s, float* dA, float* dB, float* dx, int batch, int in,
              int out, int rank) {
  float* thin = nullptr;  // [batch, rank]: first x A^T, then dy B
  CHECK(cudaMalloc(&thin, size_t(batch) * rank * sizeof(float)));
  product<<<blocks, threads>>>(M(x, batch, in), T(M(A, rank, in)), thin, 0, 1);
  product<<<blocks, threads>>>(T(M(dy, batch, out)), M(thin, batch, rank), dB, 0, s);
  product<<<blocks, threads>>>(M(dy, batch, out), M(B, out, rank), thin, 0, 1);
  product<<<blocks, threads>>>(T(M(thin, batch, rank)), M(x, batch, in), dA, 0, s);
  float* const whole = const_cast<float*>(W);  // merged in place, and put back: but what is added and subtracted rounds
  product<<<blocks, threads>>>(M(B, out, rank), M(A, rank, in), whole, 1, s);
  product<<<blocks, threads>>>(M(dy, batch, out), M(whole, out, in), dx, 0, 1);
  product<<<blocks, threads>>>(M(B, out, rank), M(A, rank, in), whole, 1, -s);
  CHECK(cudaGetLastError());
  CHECK(cudaFree(thin));
}
