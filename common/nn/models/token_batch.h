#pragma once
// The tokens that a transformer reads at a time: sequences of one length, or packed ones, each of its own length.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "memory/context.h"
#include "plan/attention.h"

namespace oomlab::nn {

/// Token ids on the device, and what should come out at each place.
struct TokenBatch {
  DeviceBuffer<int> tokens;  ///< [sequences · seq], category data, tag "tokens"
  DeviceBuffer<int> labels;  ///< [sequences · seq]; negative: no target here; category data, tag "labels"
  std::size_t sequences = 0, seq = 0;
  std::size_t targets = 0;  ///< labels that are not negative
  /// Sequences of their own lengths side by side, where they are packed: tokens and labels are then [rows()], and seq is
  /// the length of the longest.
  std::optional<SequenceOffsets> packed;
  DeviceBuffer<int> offsets;    ///< packed: [sequences + 1], category data, tag "offsets"
  DeviceBuffer<int> positions;  ///< packed: [rows()], which begin again with each sequence; data, tag "positions"
  /// The number of its first row among all of a step, on all ranks: dropout goes by it.
  std::size_t first_row = 0;
  std::size_t rows() const noexcept { return packed ? packed->rows() : sequences * seq; }
  /// Null where sequences have seq rows each.
  const SequenceOffsets* offsets_of_packed() const noexcept { return packed ? &*packed : nullptr; }
};
/// Uploads token ids and labels, both [sequences · seq]. Throws OutOfMemory, and std::invalid_argument when the sizes
/// do not fit together or no label is a target. `part`: of a larger batch, which has some.
TokenBatch make_token_batch(Context& context, std::span<const int> tokens, std::span<const int> labels,
                            std::size_t sequences, std::size_t seq, bool part = false);
/// The same without any token, for plan mode. Throws OutOfMemory.
TokenBatch plan_token_batch(Context& context, std::size_t sequences, std::size_t seq);
/// Sequences of these lengths packed: token ids and labels of one behind those of the other, without padding. Throws
/// OutOfMemory, and std::invalid_argument when the sizes do not fit together, a length is 0, or no label is a target.
TokenBatch make_packed_batch(Context& context, std::span<const int> tokens, std::span<const int> labels,
                             std::span<const std::uint64_t> lengths);
/// The same without any token, for plan mode. Throws OutOfMemory.
TokenBatch plan_packed_batch(Context& context, std::span<const std::uint64_t> lengths);

}  // namespace oomlab::nn
