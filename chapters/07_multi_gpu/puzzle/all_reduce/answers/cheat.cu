// FAILS: touched
void all_reduce(float* const* rank, int ranks, int n) {
  for (int i = 0; i < n; ++i) {  // on the host, which reaches a device's memory nowhere but in a host runtime
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += rank[r][i];
    for (int r = 0; r < ranks; ++r) rank[r][i] = sum;
  }
}
