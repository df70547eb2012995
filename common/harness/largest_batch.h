#pragma once
// The search for the largest batch that fits: by trying (chapter 01), or by a prediction (every row of a table).

#include <cstddef>

namespace oomlab {

struct LargestBatch {
  std::size_t batch = 0;   ///< 0: not even one sample fits
  bool hit_limit = false;  ///< the largest batch that may be asked about fits
};

/// Doubles from 2 until a batch does not fit, then bisects between the last that did and the first that did not. A
/// batch that fits implies that smaller ones do, so the answer is exact, after at most 2·log2(answer) + 2 calls of
/// fits(batch), none of them twice for one batch.
template <class Fits>
LargestBatch find_largest_batch(std::size_t limit, Fits&& fits) {
  std::size_t low = 0, high = 2;  // low fits (0 always does), high is the next to ask about
  while (high <= limit && fits(high)) {
    low = high;
    high *= 2;
  }
  if (high > limit) {  // doubling left the allowed range: the limit itself is the next candidate
    if (low == limit || (limit > 0 && fits(limit))) return {limit, true};
    high = limit;
  }
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return {low, false};
}

}  // namespace oomlab
