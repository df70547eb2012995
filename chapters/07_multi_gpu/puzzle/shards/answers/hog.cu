// FAILS: over_budget
void train(float* const* w, const float* const* g, int ranks, int n, int steps, float rate, float beta) {
  const int share = (n + ranks - 1) / ranks;
  std::vector<float*> momentum(ranks), mean(ranks);
  for (int r = 0; r < ranks; ++r) {
    CHECK(cudaMalloc(&momentum[r], share * sizeof(float)));
    CHECK(cudaMalloc(&mean[r], share * sizeof(float)));  // the mean gradient, in an array of its own
  }
  (void)w, (void)g, (void)steps, (void)rate, (void)beta;
}
