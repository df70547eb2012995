#pragma once
// Which tokens of every sequence a rank has, where several ranks share them out (context parallelism). Its own tokens
// are two runs of neighbours, in order: behind the first half of them there is a gap.

#include <cuda_runtime.h>

#include <cstddef>

namespace oomlab::nn {

/// By default all tokens of a sequence.
struct TokenShare {
  std::size_t seq = 1;    ///< own tokens of a sequence
  std::size_t first = 0;  ///< the position of the first one
  std::size_t gap = 0;    ///< tokens of others between the two halves

  __host__ __device__ std::size_t half() const { return seq / 2; }
  /// Of token q of a sequence's own ones.
  __host__ __device__ std::size_t position(std::size_t q) const { return first + q + (q < half() ? 0 : gap); }
  /// How many own tokens stand at `position` or before it. They are the first ones.
  __host__ __device__ std::size_t up_to(std::size_t position) const {
    const std::size_t before = position + 1;
    const std::size_t second = first + half() + gap;
    if (before > second) return before - second < seq - half() ? before - gap - first : seq;
    if (before <= first) return 0;
    return before - first < half() ? before - first : half();
  }
  bool whole() const { return first == 0 && gap == 0; }
};

/// Rank number `rank` of so many has these of a sequence of `all` tokens: neighbours, or with `zig_zag` the chunks number
/// rank and 2 · ranks − 1 − rank of 2 · ranks. Of the triangle of causal attention each then has as much.
inline TokenShare token_share(std::size_t all, std::size_t ranks, std::size_t rank, bool zig_zag) {
  const std::size_t own = all / ranks;
  if (!zig_zag) return {.seq = own, .first = rank * own, .gap = 0};
  const std::size_t chunk = own / 2;
  return {.seq = own, .first = rank * chunk, .gap = (2 * ranks - 2 - 2 * rank) * chunk};
}

}  // namespace oomlab::nn
