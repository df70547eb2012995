// FAILS: race_of_blocks
// Thread 0 of every block adds what its block has.
__global__ void add_parts(const float* x, const float* r, float* gradient, int rows, int width, float scale) {
  if (threadIdx.x > 0) return;
  for (int k = 0; k < width; ++k) {
    float sum = 0;
    for (int i = blockIdx.x; i < rows; i += gridDim.x) sum += r[i] * x[i * width + k];
    gradient[k] += scale * sum;
  }
}
void accumulate(const float* x, const float* y, const float* w, int samples, int width, int micro, float* gradient) {
  float* r = nullptr;
  CHECK(cudaMalloc(&r, micro * sizeof(float)));
  CHECK(cudaMemset(gradient, 0, width * sizeof(float)));
  for (int first = 0; first < samples; first += micro) {
    const int rows = std::min(micro, samples - first);
    residuals<<<blocks, threads>>>(x + first * width, y + first, w, r, rows, width);
    add_parts<<<blocks, threads>>>(x + first * width, r, gradient, rows, width, 2.0f / samples);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(r));
}
