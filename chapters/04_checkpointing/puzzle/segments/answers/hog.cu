// FAILS: over_budget
void backward(const float* w, int layers, const float* input, float* gradient, int n) {
  const size_t bytes = n * sizeof(float);
  std::vector<float*> kept(layers);
  for (int l = 1; l < layers; ++l) {
    if (l % 2 == 0 && l + 2 < layers) continue;  // every second one: half is not the square root
    CHECK(cudaMalloc(&kept[l], bytes));
    CHECK(cudaMemcpy(kept[l], input, bytes, cudaMemcpyDeviceToDevice));
  }
  for (int l = layers - 1; l >= 0; --l) {
    backward_layer<<<blocks, threads>>>(w[l], kept[l] ? kept[l] : input, gradient, n);
    CHECK(cudaFree(kept[l]));
  }
}
