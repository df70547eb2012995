void all_reduce(float* const* rank, int ranks, int n) {
  const int piece = (n + ranks - 1) / ranks;  // the last one may be shorter, or empty
  // Reduce-scatter: rank r becomes the owner of piece r's sum.
  for (int r = 0; r < ranks; ++r) {
    const int first = std::min(r * piece, n);
    const int count = std::min(piece, n - first);
    for (int other = 0; other < ranks; ++other)
      if (other != r && count > 0) add<<<blocks, threads>>>(rank[other] + first, rank[r] + first, count);
  }
  // All-gather: every owner gives its piece to the others, over what they no longer need.
  for (int r = 0; r < ranks; ++r) {
    const int first = std::min(r * piece, n);
    const int count = std::min(piece, n - first);
    for (int other = 0; other < ranks; ++other)
      if (other != r && count > 0) copy(rank[other] + first, rank[r] + first, count);
  }
  CHECK(cudaGetLastError());
}
