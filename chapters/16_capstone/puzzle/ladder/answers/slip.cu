// FAILS: rule
unsigned ladder(int levers, Time time, Step step) {
  std::vector<int> order(levers);
  for (int i = 0; i < levers; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](int a, int b) { return time(1u << a) < time(1u << b); });  // the cheapest lever first
  unsigned set = 0;
  for (int i = 0; !fits(step, set); ++i) {
    if (i == levers) return ~0u;
    set |= 1u << order[i];
  }
  return set;
}
