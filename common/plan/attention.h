#pragma once
// Sizes of attention: its shape, the tiles in which it is computed, its operations.

#include <cstdint>
#include <span>
#include <vector>

#include "plan/bytes.h"

namespace oomlab::nn {

/// Sequences of their own lengths side by side, without padding (packing): where each begins.
struct SequenceOffsets {
  std::vector<std::uint64_t> first;  ///< [sequences + 1] rows: of each sequence, and behind the last; "cu_seqlens"
  const int* on_device = nullptr;    ///< the same there
  std::uint64_t sequences() const noexcept { return first.size() - 1; }
  std::uint64_t rows() const noexcept { return first.back(); }
  std::uint64_t length(std::uint64_t sequence) const noexcept { return first[sequence + 1] - first[sequence]; }
};
/// Of sequences with these lengths, one after the other. Throws std::length_error beyond 64 bits.
SequenceOffsets offsets_of(std::span<const std::uint64_t> lengths);

/// Q, K and V of `sequences` · `seq` rows lie in qkv [rows, heads + 2 · kv_heads, depth]: all heads of Q, all of K, all
/// of V. A head of K and V serves heads / kv_heads heads of Q that follow each other (grouped-query attention; Ainslie
/// et al., 2023). width = heads · depth, that of the output. With several parts, heads and width are those of this
/// part.
struct AttentionShape {
  std::uint64_t sequences, seq, heads, width;
  bool causal;                 ///< row q sees rows 0…q only
  std::uint64_t kv_heads = 0;  ///< 0: heads
  /// Of packed sequences: no row sees one of another sequence, and seq is the length of the longest. Null: each has seq
  /// rows. It must outlive what it is handed to.
  const SequenceOffsets* packed = nullptr;
  /// Rows of K and V a sequence, where they are another tensor's (nn/ops/cross_attention.h); 0: seq.
  std::uint64_t key_seq = 0;
  std::uint64_t depth() const noexcept { return width / heads; }
  std::uint64_t keys() const noexcept { return kv_heads ? kv_heads : heads; }
  /// Heads of Q that share one of K and V.
  std::uint64_t sharers() const noexcept { return heads / keys(); }
  std::uint64_t matrices() const { return checked_product(sequences, heads); }
  std::uint64_t key_length() const noexcept { return key_seq ? key_seq : seq; }
  std::uint64_t rows() const { return packed ? packed->rows() : checked_product(sequences, seq); }
  /// Elements of all probabilities: [sequences, heads, seq, key length], or of packed sequences a matrix of its own size each.
  std::uint64_t scores() const;
  /// Of a row of Q, K and V together.
  std::uint64_t qkv_width() const { return checked_product(heads + 2 * keys(), depth()); }
  /// Of a row of K and V.
  std::uint64_t kv_width() const { return checked_product(2 * keys(), depth()); }
};

/// Calls body(block, first row, elements of scores before it) for what attention computes as one: all sequences, or of
/// packed ones each by itself, the blocks on the diagonal of all rows' scores.
template <class Body>
void each_diagonal_block(const AttentionShape& shape, Body body) {
  if (!shape.packed) return body(shape, std::uint64_t(0), std::uint64_t(0));
  AttentionShape block = shape;
  block.packed = nullptr;
  block.sequences = 1;
  std::uint64_t scores = 0;
  for (std::uint64_t s = 0; s < shape.packed->sequences(); ++s) {
    block.seq = shape.packed->length(s);
    body(block, shape.packed->first[s], scores);
    scores += block.scores();
  }
}

/// Operations of one product of the shape of the scores, Q·Kᵀ or another one: a multiplication and an addition are two.
/// By tiles of `rows` queries: causal, a tile has no keys after its last query. Not of packed sequences: of each block.
std::uint64_t score_product_flops(const AttentionShape& shape, std::uint64_t rows);

/// Queries of a tile, and how many of a group's max(sequences, kv_heads) matrices it has: so many that their scores
/// take no more elements than the output does, but 32 queries of all where there are as many. Of long sequences a tile
/// has more queries of fewer matrices: the same scores, in products of a better shape.
struct AttentionTile {
  std::uint64_t rows, matrices;
};
/// Of the tiled form of this attention, whose sequences are not packed.
AttentionTile attention_tile(const AttentionShape& shape);
/// The largest head that the fused kernels have shared memory for.
inline constexpr std::uint64_t kFusedDepth = 256;
/// Matrices [tile, depth] that a block of the fused kernels has in shared memory.
inline constexpr std::uint64_t kFusedForwardMatrices = 4;
inline constexpr std::uint64_t kFusedBackwardMatrices = 6;
/// A square tile as large as leaves room for `matrices` of [tile, depth], two of [tile, tile], and four values a row.
std::uint64_t fused_tile(std::uint64_t depth, std::uint64_t matrices);
/// Queries, and keys, of a tile, for heads of `depth` values.
struct FusedTiles {
  std::uint64_t forward, backward;
};
/// The largest that fit into the shared memory of a block.
FusedTiles fused_tiles(std::uint64_t depth);

}  // namespace oomlab::nn
