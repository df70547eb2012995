// FAILS: leak
int largest_batch(int most, Step step) {
  int good = 0;
  int bad = most + 1;
  while (bad - good > 1) {
    const int middle = good + (bad - good) / 2;
    (fits(step, middle) ? good : bad) = middle;
  }
  static void* kept = nullptr;  // "so that nobody takes it away before the training begins"
  if (good > 0) CHECK(cudaMalloc(&kept, 512));
  return good;
}
