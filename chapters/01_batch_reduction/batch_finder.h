#pragma once
// The mitigation of chapter 01, automated: the largest batch that fits, found by trying.

#include <cstddef>
#include <optional>
#include <vector>

#include "harness/largest_batch.h"
#include "memory/out_of_memory.h"

namespace oomlab::batch_reduction {

/// One trial of the search.
struct Attempt {
  std::size_t batch = 0;
  std::optional<OutOfMemoryReport> oom;  ///< why it does not fit; empty when it does
  bool fits() const { return !oom; }
};

struct Search {
  LargestBatch largest;
  std::vector<Attempt> attempts;  ///< in order: every one is reported, also the failures
};

/// The largest batch that fits, at most `limit` (common/harness/largest_batch.h has the search). `attempt(batch)` does
/// a step with that batch and throws OutOfMemory when it does not fit, having given back whatever it had allocated; any
/// other exception ends the search.
template <class Try>
Search try_batches(std::size_t limit, Try&& attempt) {
  Search search;
  search.largest = find_largest_batch(limit, [&](std::size_t batch) {
    search.attempts.push_back({batch, std::nullopt});
    try {
      attempt(batch);
    } catch (const OutOfMemory& error) {
      search.attempts.back().oom = error.report();
    }
    return search.attempts.back().fits();
  });
  return search;
}

}  // namespace oomlab::batch_reduction
