int largest_batch(int most, Step step) {
  int good = 0;
  int bad = most + 1;
  for (int batch = 1; batch < bad; batch = std::min(2 * batch, most)) {  // first the magnitude
    if (!fits(step, batch)) {
      bad = batch;
    } else {
      good = batch;
      if (batch == most) return most;
    }
  }
  while (bad - good > 1) {  // good fits, bad does not, and the answer is between them
    const int middle = good + (bad - good) / 2;
    (fits(step, middle) ? good : bad) = middle;
  }
  return good;
}
