#pragma once
// The buffers of a step, in bytes: part of step_walk.h.

#include <algorithm>
#include <stdexcept>

#include "plan/step_walk.h"

namespace oomlab::nn {

// The buffers of a step, in bytes.
struct StepSizes {
  std::uint64_t u;                 // [R, C]
  std::uint64_t a, q, p;           // of a part: attended [R, C], Q, K and V, and [B, H, S, S]
  std::uint64_t h, g;              // of a part: before and after the MLP's activation, [R, F] in gpt and bert
  std::uint64_t g_chunk, u_chunk;  // a quarter of the rows of g and u
  std::uint64_t s;                 // [R] floats: a mean, an rstd, the row losses
  std::uint64_t n;                 // what a norm keeps: both, or in llama rstd alone
  std::uint64_t t, sums;           // of tiled attention: the scores of a tile, and where its gradients are added up
  std::uint64_t l;                 // of fused attention: a float a row and head
  std::uint64_t v, chunk;          // [R, V], and of it what the chunked loss has at a time
  std::uint64_t tokens;            // and labels

  StepSizes(const TransformerSpec& spec, const StepLevers& levers) {
    const std::uint64_t rows = checked_product(levers.sequences, levers.seq), parts = levers.slice.parts;
    const auto bytes = [&](std::uint64_t a, std::uint64_t b, std::uint64_t size) {
      return round_to_granule(checked_product(checked_product(a, b), size));
    };
    const std::uint64_t e = levers.element_bytes;
    u = bytes(rows, spec.width, e);
    a = bytes(rows, spec.width / parts, e);
    const std::uint64_t depth = spec.width / spec.heads, keys = spec.keys() / parts, mlp = spec.hidden() / parts;
    q = bytes(rows, checked_product(spec.heads / parts + 2 * keys, depth), e);
    h = bytes(rows, checked_product(mlp, spec.llama() ? 2 : 1), e);
    g = bytes(rows, mlp, e);
    g_chunk = bytes(rows / 4 + (rows % 4 != 0), mlp, e);
    u_chunk = bytes(rows / 4 + (rows % 4 != 0), spec.width, e);
    p = bytes(checked_product(levers.sequences, spec.heads / parts), checked_product(levers.seq, levers.seq), e);
    s = bytes(rows, 1, sizeof(float));
    n = spec.llama() ? s : 2 * s;
    // Tiled attention works on the heads of K and V of a sequence, or on one head of all sequences, whichever are more.
    const std::uint64_t heads = spec.heads / parts, side_by_side = std::max(levers.sequences, keys);
    const std::uint64_t as_output = checked_product(levers.sequences, spec.width / parts) / side_by_side;
    std::uint64_t queries = std::min(levers.seq, std::max<std::uint64_t>(32, as_output)), of_tile = side_by_side;
    if (const std::uint64_t better = std::min<std::uint64_t>(128, levers.seq / 8),
        all = checked_product(queries, of_tile);
        queries < better && better <= all)
      queries = better, of_tile = all / better;  // long sequences: more queries of fewer matrices
    t = bytes(checked_product(of_tile, queries), levers.seq, e);
    const bool several = queries < levers.seq || heads > keys;  // summands of a gradient of K or V
    sums = e < sizeof(float) && several ? bytes(checked_product(of_tile, levers.seq), 2 * depth, sizeof(float)) : 0;
    l = bytes(rows, heads, sizeof(float));
    v = bytes(rows, spec.vocabulary, e);
    const std::uint64_t as_residual = checked_product(rows, spec.width) / spec.vocabulary;
    chunk = bytes(std::clamp<std::uint64_t>(as_residual, 1, rows / 4 + (rows % 4 != 0)), spec.vocabulary, e);
    tokens = token_batch_bytes(levers.sequences, levers.seq);
    // So that small multiples of these need no check.
    if (std::max({u, h, g, p, t, sums, l, v, s, q, tokens}) > UINT64_MAX / 64)
      throw std::length_error("a size does not fit 64 bits");
  }
};

}  // namespace oomlab::nn
