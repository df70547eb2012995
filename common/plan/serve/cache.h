#pragma once
// The shape of a KV cache, and its bytes. Each token that a decoder has read leaves, in every layer, a key and a value
// of d numbers for each of Hk heads: 2 · L · Hk · d numbers, which every later token of the request reads.
//
// They lie in blocks, each for `block_tokens` tokens of one request in all layers: as many as the longest request may
// have (contiguous), or 16 (paged; Kwon et al., "PagedAttention", 2023).

#include <cstdint>

#include "dtype.h"
#include "plan/bytes.h"

namespace oomlab::serve {

/// What a block holds: of each layer [2 (keys, values), kv_heads, block_tokens, depth] values; then, in a format with
/// scales, one in FP32 for each token, head, and K or V: [layers, 2, kv_heads, block_tokens].
struct CacheShape {
  std::uint64_t layers = 0;      ///< on the device
  std::uint64_t cpu_layers = 0;  ///< behind these, in host memory, always in FP32
  std::uint64_t kv_heads = 0;
  std::uint64_t depth = 0;
  std::uint64_t block_tokens = 16;
  DType dtype = DType::fp32;  ///< of a key's and a value's numbers, on the device

  bool scaled() const { return !row_of(dtype).scales.empty(); }
  /// Rows of `depth` numbers for one token: K and V of all heads, in so many layers.
  std::uint64_t rows_of_token(std::uint64_t of_layers) const { return checked_product(2 * of_layers, kv_heads); }
  /// Where the scales begin, bytes: a multiple of 16.
  std::uint64_t scales_at() const {
    const std::uint64_t numbers = checked_product(checked_product(rows_of_token(layers), block_tokens), depth);
    return (checked_product(numbers, element_bytes(dtype)) + 15) / 16 * 16;
  }
  /// Bytes of a block on the device, and as the ledger counts them. Throws std::length_error.
  std::uint64_t block_bytes() const {
    const std::uint64_t scales = scaled() ? checked_product(rows_of_token(layers), block_tokens) : 0;
    return checked_sum(scales_at(), checked_product(scales, element_bytes(DType::fp32)));
  }
  std::uint64_t counted_block_bytes() const { return round_to_granule(block_bytes()); }
  /// Numbers of a block in host memory, and their bytes.
  std::uint64_t cpu_numbers() const {
    return checked_product(checked_product(rows_of_token(cpu_layers), block_tokens), depth);
  }
  std::uint64_t cpu_block_bytes() const { return checked_product(cpu_numbers(), element_bytes(DType::fp32)); }
  std::uint64_t blocks_for(std::uint64_t tokens) const noexcept {
    return tokens / block_tokens + (tokens % block_tokens != 0);
  }
};

}  // namespace oomlab::serve
