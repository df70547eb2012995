#include "plan/attention.h"

#include <algorithm>

namespace oomlab::nn {

namespace {

constexpr std::uint64_t kSharedFloats = 12 * 1024;  // 48 KiB, which every GPU gives without being asked
constexpr std::uint64_t kLeastTile = 4;

}  // namespace

std::uint64_t score_product_flops(const AttentionShape& shape, std::uint64_t rows) {
  // Keys, over all queries: in the n-th whole tile each of `rows` queries sees n · rows of them; the rest sees all.
  const std::uint64_t tiles = shape.seq / rows, rest = shape.seq % rows;
  const std::uint64_t seen =
      shape.causal ? rows * rows * (tiles * (tiles + 1) / 2) + rest * shape.seq : shape.seq * shape.seq;
  return 2 * shape.sequences * seen * shape.width;
}

AttentionTile attention_tile(const AttentionShape& shape) {
  constexpr std::uint64_t kLeast = 32;  // fewer would make products of a few rows only
  constexpr std::uint64_t kGood = 128;  // more are not faster, and causal attention computes scores that nobody sees
  const std::uint64_t all = std::max(shape.keys(), shape.sequences);
  const std::uint64_t rows = std::min(shape.seq, std::max(kLeast, checked_product(shape.sequences, shape.width) / all));
  const std::uint64_t better = std::min(kGood, shape.seq / 8);
  const std::uint64_t queries = checked_product(rows, all);
  if (rows >= better || queries < better) return {rows, all};
  return {better, queries / better};
}

std::uint64_t fused_tile(std::uint64_t depth, std::uint64_t matrices) {
  std::uint64_t tile = 64;
  while (tile > kLeastTile && matrices * tile * depth + 2 * tile * tile + 4 * tile > kSharedFloats) tile /= 2;
  return tile;
}

FusedTiles fused_tiles(std::uint64_t depth) {
  return {fused_tile(depth, kFusedForwardMatrices), fused_tile(depth, kFusedBackwardMatrices)};
}

}  // namespace oomlab::nn
