void backward(const float* w, int layers, const float* input, float* gradient, int n) {
  const size_t bytes = n * sizeof(float);
  const int segment = int(std::ceil(std::sqrt(double(layers))));
  const int segments = (layers + segment - 1) / segment;

  // Forward: only the first input of each segment stays. The first segment's is the input itself.
  std::vector<float*> first(segments);
  float* current = nullptr;
  CHECK(cudaMalloc(&current, bytes));
  for (int l = 0; l < (segments - 1) * segment; ++l) {
    if (l % segment == 0 && l > 0) {
      CHECK(cudaMalloc(&first[l / segment], bytes));
      CHECK(cudaMemcpy(first[l / segment], current, bytes, cudaMemcpyDeviceToDevice));
    }
    forward_layer<<<blocks, threads>>>(w[l], l > 0 ? current : input, current, n);
  }
  if (segments > 1) first[segments - 1] = current;  // what the last segment begins with
  else CHECK(cudaFree(current));

  // Backward, one segment after the other: its inputs are computed again, used, and freed.
  for (int s = segments - 1; s >= 0; --s) {
    const int begin = s * segment;
    const int end = std::min(begin + segment, layers);
    std::vector<float*> x(segment);
    for (int l = begin + 1; l < end; ++l) {
      const float* before = l - 1 > begin ? x[l - 1 - begin] : s > 0 ? first[s] : input;
      CHECK(cudaMalloc(&x[l - begin], bytes));
      forward_layer<<<blocks, threads>>>(w[l - 1], before, x[l - begin], n);
    }
    for (int l = end - 1; l >= begin; --l) {
      const float* own = l > begin ? x[l - begin] : s > 0 ? first[s] : input;
      backward_layer<<<blocks, threads>>>(w[l], own, gradient, n);
      CHECK(cudaFree(x[l - begin]));
    }
    if (s > 0) CHECK(cudaFree(first[s]));
  }
  CHECK(cudaGetLastError());
}
