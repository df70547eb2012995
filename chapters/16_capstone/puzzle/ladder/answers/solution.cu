unsigned ladder(int levers, Time time, Step step) {
  std::vector<unsigned> sets(size_t(1) << levers);
  for (size_t s = 0; s < sets.size(); ++s) sets[s] = unsigned(s);
  std::sort(sets.begin(), sets.end(), [&](unsigned a, unsigned b) { return time(a) < time(b); });
  for (const unsigned set : sets)
    if (fits(step, set)) return set;  // all that are faster have been tried
  return ~0u;
}
