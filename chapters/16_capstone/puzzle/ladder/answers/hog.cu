// FAILS: leak
unsigned ladder(int levers, Time time, Step step) {
  std::vector<unsigned> sets(size_t(1) << levers);
  for (size_t s = 0; s < sets.size(); ++s) sets[s] = unsigned(s);
  std::sort(sets.begin(), sets.end(), [&](unsigned a, unsigned b) { return time(a) < time(b); });
  float* guard = nullptr;  // "so that it also fits tomorrow"
  size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total));
  CHECK(cudaMalloc(&guard, free / 100));
  for (const unsigned set : sets)
    if (fits(step, set)) return set;
  return ~0u;
}
