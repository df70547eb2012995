void row_losses(const float* x, const float* w, int rows, int width, int hidden, float* loss) {
  float* h = nullptr;
  CHECK(cudaMalloc(&h, size_t(std::min(rows, chunk)) * hidden * sizeof(float)));
  for (int first = 0; first < rows; first += chunk) {
    const int now = std::min(chunk, rows - first);  // the last chunk may be shorter
    hidden_layer<<<now, threads>>>(x + first * width, w, h, width, hidden);
    sum_rows<<<8, threads>>>(h, loss + first, now, hidden);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(h));
}
