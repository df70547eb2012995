// FAILS: over_budget
void all_reduce(float* const* rank, int ranks, int n) {
  float* total = nullptr;  // one copy instead of one for each rank
  CHECK(cudaMalloc(&total, n * sizeof(float)));
  copy(total, rank[0], n);
  for (int r = 1; r < ranks; ++r) add<<<blocks, threads>>>(rank[r], total, n);
  for (int r = 0; r < ranks; ++r) copy(rank[r], total, n);
  CHECK(cudaFree(total));
}
