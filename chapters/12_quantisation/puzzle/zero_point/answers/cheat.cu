// FAILS: host_arrays
void quantise(const float* w, int rows, int width, unsigned char* codes, float* scales, unsigned char* zeros) {
  float copy[1 << 17];  // on the stack of the host, where nobody counts
  CHECK(cudaMemcpy(copy, w, size_t(rows) * width * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < rows * width; ++i) copy[i] = copy[i] > 0 ? 255.0f : 0.0f;
  CHECK(cudaMemcpy(codes, copy, size_t(rows) * width, cudaMemcpyHostToDevice));
  CHECK(cudaMemset(scales, 0, rows));
  CHECK(cudaMemset(zeros, 0, rows));
}
