#include "plan/attention.h"

#include <algorithm>

namespace oomlab::nn {

namespace {

constexpr std::uint64_t kSharedFloats = 12 * 1024;  // 48 KiB, which every GPU gives without being asked
constexpr std::uint64_t kMinTile = 4;

}  // namespace

SequenceOffsets offsets_of(std::span<const std::uint64_t> lengths) {
  SequenceOffsets offsets{{0}};
  for (const std::uint64_t length : lengths) offsets.first.push_back(checked_sum(offsets.first.back(), length));
  return offsets;
}

std::uint64_t AttentionShape::scores() const {
  if (!packed) return checked_product(matrices(), checked_product(seq, key_length()));
  std::uint64_t all = 0;
  for (std::uint64_t s = 0; s < packed->sequences(); ++s)
    all = checked_sum(all, checked_product(heads, checked_product(packed->length(s), packed->length(s))));
  return all;
}

std::uint64_t score_product_flops(const AttentionShape& shape, std::uint64_t rows) {
  // Keys, over all queries: in the n-th whole tile each of `rows` queries sees n · rows of them; the rest sees all.
  const std::uint64_t tiles = shape.seq / rows;
  const std::uint64_t rest = shape.seq % rows;
  const std::uint64_t seen_by_tiles = rows * rows * (tiles * (tiles + 1) / 2);
  const std::uint64_t seen = shape.causal ? seen_by_tiles + rest * shape.seq : shape.seq * shape.key_length();
  return 2 * shape.sequences * seen * shape.width;
}

AttentionTile attention_tile(const AttentionShape& shape) {
  constexpr std::uint64_t kMinRows = 32;  // fewer would make products of a few rows only
  constexpr std::uint64_t kGoodRows =
      128;  // more are not faster, and causal attention computes scores that nobody sees
  const std::uint64_t matrices = std::max(shape.keys(), shape.sequences);
  const std::uint64_t output = checked_product(shape.sequences, checked_product(shape.seq, shape.width));
  const std::uint64_t as_output = output / shape.key_length() / matrices;
  const std::uint64_t rows = std::min(shape.seq, std::max(kMinRows, as_output));
  const std::uint64_t good_rows = std::min(kGoodRows, shape.seq / 8);
  const std::uint64_t rows_of_all = checked_product(rows, matrices);
  if (rows < good_rows && good_rows <= rows_of_all) return {good_rows, rows_of_all / good_rows};
  return {rows, matrices};
}

std::uint64_t fused_tile(std::uint64_t depth, std::uint64_t matrices) {
  const auto shared_floats = [&](std::uint64_t tile) { return matrices * tile * depth + 2 * tile * tile + 4 * tile; };
  std::uint64_t tile = 64;
  while (tile > kMinTile && shared_floats(tile) > kSharedFloats) tile /= 2;
  return tile;
}

FusedTiles fused_tiles(std::uint64_t depth) {
  return {fused_tile(depth, kFusedForwardMatrices), fused_tile(depth, kFusedBackwardMatrices)};
}

}  // namespace oomlab::nn
