void backward(const float* x, const float* dy, const float* W1, const float* W2, float* dx, float* dW1, float* dW2, int tokens, int width, int hidden) {
  float *h = nullptr, *dh = nullptr;
  CHECK(cudaMalloc(&h, size_t(tile) * hidden * sizeof(float)));
  CHECK(cudaMalloc(&dh, size_t(tile) * hidden * sizeof(float)));
  for (int first = 0; first < tokens; first += tile) {
    const int rows = std::min(tile, tokens - first);  // the last tile may have fewer
    const float keep = first > 0;                     // gradients of weights add up over the tiles
    const Matrix x_tile = M(x + first * width, rows, width);
    const Matrix dy_tile = M(dy + first * width, rows, width);
    product<<<blocks, threads>>>(x_tile, M(W1, width, hidden), h, 0);
    relu<<<blocks, threads>>>(h, rows * hidden);
    product<<<blocks, threads>>>(T(M(h, rows, hidden)), dy_tile, dW2, keep);
    product<<<blocks, threads>>>(dy_tile, T(M(W2, hidden, width)), dh, 0);
    relu_backward<<<blocks, threads>>>(h, dh, rows * hidden);
    product<<<blocks, threads>>>(T(x_tile), M(dh, rows, hidden), dW1, keep);
    product<<<blocks, threads>>>(M(dh, rows, hidden), T(M(W1, width, hidden)), dx + first * width, 0);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(h));
  CHECK(cudaFree(dh));
}
