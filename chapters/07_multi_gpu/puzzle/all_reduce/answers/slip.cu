// FAILS: differs
void all_reduce(float* const* rank, int ranks, int n) {
  const int piece = n / ranks;  // the remainder belongs to nobody
  for (int r = 0; r < ranks; ++r)
    for (int other = 0; other < ranks; ++other)
      if (other != r && piece > 0) add<<<blocks, threads>>>(rank[other] + r * piece, rank[r] + r * piece, piece);
  for (int r = 0; r < ranks; ++r)
    for (int other = 0; other < ranks; ++other)
      if (other != r && piece > 0) copy(rank[other] + r * piece, rank[r] + r * piece, piece);
  CHECK(cudaGetLastError());
}
