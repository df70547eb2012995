// FAILS: rule
int largest_batch(int most, Step step) {
  int good = 0;
  int bad = most;  // most itself is never tried
  while (bad - good > 1) {
    const int middle = good + (bad - good) / 2;
    (fits(step, middle) ? good : bad) = middle;
  }
  return good;
}
