void step(const float* input, float* output, float* gradient, int n, int layers, unsigned seed, unsigned& drawn) {
  std::vector<unsigned> numbers(layers);  // one number for each layer: 4 bytes, not a mask
  for (unsigned& number : numbers) number = draw(seed, drawn);
  for (int l = 0; l < layers; ++l) forward_layer<<<blocks, threads>>>(numbers[l], l > 0 ? output : input, output, n);
  float* x = nullptr;
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  for (int l = layers - 1; l >= 0; --l) {
    for (int k = 0; k < l; ++k) forward_layer<<<blocks, threads>>>(numbers[k], k > 0 ? x : input, x, n);
    backward_layer<<<blocks, threads>>>(numbers[l], l > 0 ? x : input, gradient, n);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(x));
}
