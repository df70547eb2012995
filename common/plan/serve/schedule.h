#pragma once
// The schedule of a server on paper: lengths instead of tokens, numbers of blocks instead of blocks. It says before
// anything is computed how many requests run at a time, how many places are wasted, and how many blocks are needed.

#include <cstdint>
#include <span>

#include "plan/serve/requests.h"

namespace oomlab::serve {

/// Figures of a whole stream. A place is room for one token's keys and values.
struct ServingCounts {
  std::uint64_t steps = 0;
  std::uint64_t rows = 0;          ///< tokens that went through the model, some of them again after a preemption
  std::uint64_t answered = 0;      ///< tokens of answers
  std::uint64_t preemptions = 0;   ///< requests that gave their blocks back, and begin again
  std::uint64_t max_requests = 0;  ///< at a time
  std::uint64_t requests = 0;      ///< at a time, added up over the steps
  std::uint64_t reserved = 0;      ///< places in used blocks, added up over the steps
  std::uint64_t used = 0;          ///< those of them that hold a token, after the step
  friend bool operator==(const ServingCounts&, const ServingCounts&) = default;

  /// A step with so many requests, and places.
  void add_step(std::uint64_t requests_now, std::uint64_t reserved_now, std::uint64_t used_now) noexcept;
  double mean_requests() const noexcept { return steps ? double(requests) / double(steps) : 0.0; }
  /// Reserved places that hold nothing, percent, on average.
  double waste() const noexcept { return reserved ? 100.0 * double(reserved - used) / double(reserved) : 0.0; }
};

struct ServingSchedule {
  bool possible = true;  ///< false: a request needs more blocks than there are; then the figures end there
  std::uint64_t max_blocks = 0;
  ServingCounts counts;
};

/// Requests in order of arrival, all of which have arrived, with up to `blocks` blocks of `block_tokens` tokens, and
/// `max_rows` rows a step. Each step gives every running request a row for its next token, or rows for its prompt
/// (continuous batching; Yu et al., "Orca", 2022). Who waits is admitted in order, when there are blocks for all tokens
/// that it has so far. Where a block cannot be had, the youngest request is preempted, and computed again later (Kwon
/// et al., 2023).
ServingSchedule simulate_serving(std::span<const RequestLengths> requests, std::uint64_t block_tokens,
                                 std::uint64_t blocks, std::uint64_t max_rows);

}  // namespace oomlab::serve
