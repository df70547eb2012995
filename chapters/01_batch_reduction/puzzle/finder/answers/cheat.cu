// FAILS: rule
int largest_batch(int most, Step step) {
  size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total));
  fits(step, 1);
  return int(std::min(size_t(most), free / 2048));  // a guess at what a batch takes
}
