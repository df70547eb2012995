// FAILS: over_budget
__global__ void make_mask(unsigned number, bool* mask, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mask[i] = keeps(number, i);
}
void step(const float* input, float* output, float* gradient, int n, int layers, unsigned seed, unsigned& drawn) {
  std::vector<bool*> mask(layers);
  std::vector<unsigned> numbers(layers);
  float* x = nullptr;
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  for (int l = 0; l < layers; ++l) {  // a byte for each element of each layer
    numbers[l] = draw(seed, drawn);
    CHECK(cudaMalloc(&mask[l], n));
    make_mask<<<blocks, threads>>>(numbers[l], mask[l], n);
    forward_layer<<<blocks, threads>>>(numbers[l], l > 0 ? output : input, output, n);
  }
  for (bool* m : mask) CHECK(cudaFree(m));
  CHECK(cudaFree(x));
  (void)gradient;
}
