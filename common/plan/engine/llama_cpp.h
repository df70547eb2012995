#pragma once
// What llama.cpp takes of cards and of the host's memory: weights of a GGUF file, the cache of keys and values, and the
// compute buffer that a pass over `micro_batch` tokens is planned with.
//
// Weights and cache are exact: layers, cells and types decide them. The last `layers_on_cards` of all layers are on cards,
// the output counts as one behind the last; the token embedding is always on the host. Read in llama-model.cpp,
// llama-kv-cache.cpp and llama-context.cpp of 2026. A compute buffer is as large as the largest of three moments of a
// pass: attention's scores or mask, the MLP, the logits. That was read, too, and agrees with what logs print; see
// docs/fit_engines.md.

#include <cstdint>
#include <vector>

#include "plan/engine/gguf.h"

namespace oomlab::fit {

struct LlamaCppRun {
  const GgufKind* kind = nullptr;
  std::uint64_t sequences = 1, tokens = 1;     ///< -np, and of each; -c is their product
  std::uint64_t micro_batch = 512;             ///< -ub: tokens of a pass
  GgufType cache = GgufType::f16;              ///< -ctk and -ctv
  bool flash_attention = true;                 ///< -fa; the default since 2025
  std::uint64_t layers_on_cards = UINT64_MAX;  ///< -ngl; all, where there are fewer
  std::uint64_t cards = 1;                     ///< layers are split among them evenly
};

struct LlamaCppPart {
  std::uint64_t weights = 0, cache = 0, compute = 0;  ///< bytes
  /// What kernels may take beside these: a layer's keys and values in 16 bits, where the cache has fewer.
  std::uint64_t scratch = 0;
  std::uint64_t layers = 0;
  std::uint64_t total() const { return checked_sum({weights, cache, compute}); }
};

struct LlamaCppNeed {
  std::vector<LlamaCppPart> cards;
  LlamaCppPart host;
  /// The card that needs most.
  const LlamaCppPart& fullest() const;
};

/// Throws std::invalid_argument for a model that is no decoder, a quantised cache without flash attention or with heads
/// that are no whole blocks, and std::length_error where 64 bits do not hold a figure.
LlamaCppNeed llama_cpp_need(const nn::HfShape& shape, const LlamaCppRun& run);

/// Bytes of the file's tensors: what it has on a disk, but for the vocabulary and other words in front (some MB).
std::uint64_t gguf_file_bytes(const nn::HfShape& shape, const GgufKind& kind);

}  // namespace oomlab::fit
