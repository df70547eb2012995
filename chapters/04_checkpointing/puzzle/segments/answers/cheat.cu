// FAILS: host_bytes
void backward(const float* w, int layers, const float* input, float* gradient, int n) {
  const size_t bytes = n * sizeof(float);
  std::vector<std::vector<float>> kept(layers);  // in the host's memory, where no budget is
  float* x = nullptr;
  CHECK(cudaMalloc(&x, bytes));
  CHECK(cudaMemcpy(x, input, bytes, cudaMemcpyDeviceToDevice));
  for (int l = 0; l < layers; ++l) {
    kept[l].resize(n);
    CHECK(cudaMemcpy(kept[l].data(), x, bytes, cudaMemcpyDeviceToHost));
    forward_layer<<<blocks, threads>>>(w[l], x, x, n);
  }
  for (int l = layers - 1; l >= 0; --l) {
    CHECK(cudaMemcpy(x, kept[l].data(), bytes, cudaMemcpyHostToDevice));
    backward_layer<<<blocks, threads>>>(w[l], x, gradient, n);
  }
  CHECK(cudaFree(x));
}
