// FAILS: rule
void step(const float* input, float* output, float* gradient, int n, int layers, unsigned seed, unsigned& drawn) {
  const unsigned begin = drawn;
  for (int l = 0; l < layers; ++l) forward_layer<<<blocks, threads>>>(draw(seed, drawn), l > 0 ? output : input, output, n);
  float* x = nullptr;
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  for (int l = layers - 1; l >= 0; --l) {
    drawn = begin;  // the same numbers again, and afterwards it stands wherever it stands
    for (int k = 0; k < l; ++k) forward_layer<<<blocks, threads>>>(draw(seed, drawn), k > 0 ? x : input, x, n);
    backward_layer<<<blocks, threads>>>(draw(seed, drawn), l > 0 ? x : input, gradient, n);
  }
  CHECK(cudaFree(x));
}
