// FAILS: over_budget
void row_losses(const float* x, const float* w, int rows, int width, int hidden, float* loss) {
  const int half = (rows + 1) / 2;
  float* h = nullptr;
  CHECK(cudaMalloc(&h, size_t(half) * hidden * sizeof(float)));
  for (int first = 0; first < rows; first += half) {
    const int now = std::min(half, rows - first);
    hidden_layer<<<now, threads>>>(x + first * width, w, h, width, hidden);
    sum_rows<<<8, threads>>>(h, loss + first, now, hidden);
  }
  CHECK(cudaFree(h));
}
