// FAILS: differs
void step(const __half* g, float* w, int n, float rate, float& scale, int& good_steps) {
  int* found = nullptr;
  CHECK(cudaMalloc(&found, sizeof(int)));
  CHECK(cudaMemset(found, 0, sizeof(int)));
  look_for_overflow<<<blocks, threads>>>(g, n, found);
  int overflows = 0;
  CHECK(cudaMemcpy(&overflows, found, sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(found));
  if (overflows) {
    scale /= 2;  // and the row of good steps goes on
    return;
  }
  update<<<blocks, threads>>>(g, w, n, rate / scale);
  if (++good_steps % grow_after == 0) scale = std::min(2 * scale, largest_scale);
}
