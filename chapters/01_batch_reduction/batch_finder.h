#pragma once
// The mitigation of chapter 01, automated: the largest batch that fits, found by trying.

#include <cstddef>
#include <optional>
#include <vector>

#include "memory/out_of_memory.h"

namespace oomlab::batch_reduction {

/// One trial of the search.
struct Attempt {
  std::size_t batch = 0;
  std::optional<OutOfMemoryReport> oom;  ///< why it does not fit; empty when it does
  bool fits() const { return !oom; }
};

struct Search {
  std::size_t largest = 0;        ///< 0: not even one sample fits
  bool hit_limit = false;         ///< the largest batch that may be tried fits
  std::vector<Attempt> attempts;  ///< in order: every one is reported, also the failures
};

/// Doubles from 2 until a batch does not fit, then bisects between the last that did and the first that did not.
/// `attempt(batch)` does a step with that batch and throws OutOfMemory when it does not fit, having given back
/// whatever it had allocated; any other exception ends the search. A batch that fits implies that smaller ones do,
/// so the answer is exact, after at most 2·log2(answer) + 2 trials, none of them tried twice.
template <class Try>
Search find_largest_batch(std::size_t limit, Try&& attempt) {
  Search search;
  const auto fits = [&](std::size_t batch) {
    search.attempts.push_back({batch, std::nullopt});
    try {
      attempt(batch);
    } catch (const OutOfMemory& error) {
      search.attempts.back().oom = error.report();
    }
    return search.attempts.back().fits();
  };

  std::size_t low = 0, high = 2;  // low fits (0 always does), high is the next to try
  while (high <= limit && fits(high)) {
    low = high;
    high *= 2;
  }
  if (high > limit) {  // doubling left the allowed range: the limit itself is the next candidate
    if (low == limit || (limit > 0 && fits(limit))) {
      search.largest = limit;
      search.hit_limit = true;
      return search;
    }
    high = limit;
  }
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  search.largest = low;
  return search;
}

}  // namespace oomlab::batch_reduction
