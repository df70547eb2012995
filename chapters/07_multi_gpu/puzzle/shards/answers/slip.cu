// FAILS: differs
void train(float* const* w, const float* const* g, int ranks, int n, int steps, float rate, float beta) {
  const int share = (n + ranks - 1) / ranks;
  std::vector<float*> momentum(ranks);
  for (int r = 0; r < ranks; ++r) {
    CHECK(cudaMalloc(&momentum[r], share * sizeof(float)));
    CHECK(cudaMemset(momentum[r], 0, share * sizeof(float)));
  }
  for (int s = 0; s < steps; ++s)
    for (int r = 0; r < ranks; ++r) {  // each updates its part, and nobody tells the others
      const int first = std::min(r * share, n);
      const int count = std::min(share, n - first);
      if (count == 0) continue;
      scale<<<blocks, threads>>>(momentum[r], count, beta);
      for (int other = 0; other < ranks; ++other) add<<<blocks, threads>>>(g[other] + first, momentum[r], count, 1.0f / ranks);
      add<<<blocks, threads>>>(momentum[r], w[r] + first, count, -rate);
    }
  CHECK(cudaGetLastError());
  for (float* m : momentum) CHECK(cudaFree(m));
}
