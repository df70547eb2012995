// FAILS: launches
void backward(const float* w, int layers, const float* input, float* gradient, int n) {
  float* x = nullptr;
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  for (int l = layers - 1; l >= 0; --l) {
    for (int k = 0; k < l; ++k) forward_layer<<<blocks, threads>>>(w[k], k > 0 ? x : input, x, n);  // from the start, every time
    backward_layer<<<blocks, threads>>>(w[l], l > 0 ? x : input, gradient, n);
  }
  CHECK(cudaFree(x));
  CHECK(cudaGetLastError());
}
