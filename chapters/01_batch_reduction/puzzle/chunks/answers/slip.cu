// FAILS: unwritten
void row_losses(const float* x, const float* w, int rows, int width, int hidden, float* loss) {
  float* h = nullptr;
  CHECK(cudaMalloc(&h, size_t(chunk) * hidden * sizeof(float)));
  for (int first = 0; first + chunk <= rows; first += chunk) {  // the rest is forgotten
    hidden_layer<<<chunk, threads>>>(x + first * width, w, h, width, hidden);
    sum_rows<<<8, threads>>>(h, loss + first, chunk, hidden);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(h));
}
