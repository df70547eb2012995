// PASSES: a thread for each element, as many blocks as that takes
void step(const float* input, float* output, float* gradient, int n, int layers, unsigned seed, unsigned& drawn) {
  for (int l = 0; l < layers; ++l) forward_layer<<<(n + threads - 1) / threads, threads>>>(draw(seed, drawn), l > 0 ? output : input, output, n);
  const unsigned end = drawn, start = drawn - layers;
  float* x = nullptr;
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  for (int l = layers - 1; l >= 0; --l) {
    drawn = start;
    for (int k = 0; k < l; ++k) forward_layer<<<(n + threads - 1) / threads, threads>>>(draw(seed, drawn), k > 0 ? x : input, x, n);
    backward_layer<<<(n + threads - 1) / threads, threads>>>(draw(seed, drawn), l > 0 ? x : input, gradient, n);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(x));
  drawn = end;
}
