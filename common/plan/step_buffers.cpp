#include "plan/step_buffers.h"

#include <algorithm>
#include <stdexcept>

namespace oomlab::nn {

namespace {

// The matrices [queries, seq] of scores that tiled attention has at a time.
struct ScoreTile {
  std::uint64_t matrices, queries;
};

// Tiled attention works on the heads of K and V of a sequence, or on one head of all sequences, whichever are more. The
// scores of a tile take no more elements than the attention's output, but 32 queries of all matrices where there are as
// many. Of long sequences a tile has more queries of fewer matrices.
ScoreTile score_tile_of(std::uint64_t sequences, std::uint64_t seq, std::uint64_t keys, std::uint64_t width) {
  constexpr std::uint64_t kMinQueries = 32;
  constexpr std::uint64_t kGoodQueries = 128;
  const std::uint64_t matrices = std::max(sequences, keys);
  const std::uint64_t as_output = checked_product(sequences, width) / matrices;
  const std::uint64_t queries = std::min(seq, std::max(kMinQueries, as_output));
  const std::uint64_t good_queries = std::min(kGoodQueries, seq / 8);
  const std::uint64_t rows = checked_product(queries, matrices);
  if (queries < good_queries && good_queries <= rows) return {.matrices = rows / good_queries, .queries = good_queries};
  return {.matrices = matrices, .queries = queries};
}

}  // namespace

std::uint64_t token_batch_bytes(std::uint64_t sequences, std::uint64_t seq) {
  return checked_product(round_to_granule(checked_product(checked_product(sequences, seq), sizeof(int))), 2);
}

std::uint64_t packed_batch_bytes(std::uint64_t sequences, std::uint64_t rows) {
  const std::uint64_t of_rows = round_to_granule(checked_product(rows, sizeof(int)));
  return checked_sum(checked_product(of_rows, 3), round_to_granule(checked_product(sequences + 1, sizeof(int))));
}

StepBuffers::StepBuffers(const TransformerSpec& spec, const StepLevers& levers) {
  const auto bytes = [](std::uint64_t rows, std::uint64_t columns, std::uint64_t element_bytes) {
    return round_to_granule(checked_product(checked_product(rows, columns), element_bytes));
  };
  const std::uint64_t element = levers.element_bytes;
  const std::uint64_t fp32 = sizeof(float);
  const std::uint64_t rows = levers.rows();
  const auto piece_of = [&](std::uint64_t pieces) { return rows / pieces + (rows % pieces != 0); };
  const std::uint64_t quarter = piece_of(4);
  const std::uint64_t piece = levers.form.tiles_mlp() ? piece_of(levers.form.mlp_tiles) : quarter;
  const std::uint64_t parts = levers.slice.parts;
  const std::uint64_t depth = spec.depth();
  const std::uint64_t heads = spec.heads / parts;
  const std::uint64_t keys = spec.keys() / parts;
  const std::uint64_t hidden = spec.hidden() / parts;

  const std::uint64_t own_rows = rows / levers.row_shares();
  const std::uint64_t of_all_rows = bytes(rows, spec.width, element);
  residual = bytes(own_rows, spec.width, element);
  all_rows = levers.row_shares() > 1 ? of_all_rows : 0;
  residual_gradient = residual;

  attention_output = bytes(rows, spec.width / parts, element);
  attention_output_gradient = attention_output;
  qkv = bytes(rows, checked_product(heads + 2 * keys, depth), element);
  qkv_gradient = qkv;

  gate_and_up = bytes(rows, checked_product(hidden, spec.llama() ? 2 : 1), element);
  activation_output = bytes(rows, hidden, element);
  activation_gradient = activation_output;
  gate_and_up_tile = bytes(piece, checked_product(hidden, spec.llama() ? 2 : 1), element);
  activation_chunk = bytes(piece, hidden, element);

  // Attention is one for all sequences, or of packed ones one for each. A rank that exchanges rows for heads has all tokens
  // of its heads.
  const std::uint64_t exchanging = levers.ulysses() ? levers.context_ranks : 1;
  const std::uint64_t own_heads = heads / exchanging;
  const std::uint64_t own_keys = keys / exchanging;
  const std::uint64_t own_width = spec.width / parts / exchanging;
  std::uint64_t scores = 0;
  score_tile = 0;
  key_value_gradient_sums = 0;
  const auto attends = [&](std::uint64_t sequences, std::uint64_t seq, std::uint64_t times) {
    const std::uint64_t matrices = checked_product(checked_product(sequences, times), own_heads);
    scores = checked_sum(scores, checked_product(matrices, checked_product(seq, seq)));
    const ScoreTile tile = score_tile_of(sequences, seq, own_keys, own_width);
    const bool several_summands = tile.queries < seq || heads > keys;
    score_tile = std::max(score_tile, bytes(checked_product(tile.matrices, tile.queries), seq, element));
    if (element < fp32 && several_summands)
      key_value_gradient_sums =
          std::max(key_value_gradient_sums, bytes(checked_product(tile.matrices, seq), 2 * depth, fp32));
  };
  if (levers.packed())
    levers.lengths.each(levers.sequences,
                        [&](std::uint64_t tokens, std::uint64_t times) { attends(1, tokens, times); });
  else
    attends(levers.sequences, checked_product(levers.seq, exchanging), 1);
  score_tile_gradient = score_tile;
  probabilities = bytes(scores, 1, element);
  probabilities_gradient = probabilities;

  const std::uint64_t row_values = bytes(rows, 1, fp32);
  const std::uint64_t values_of_norm = spec.llama() ? 1 : 2;
  const std::uint64_t norm_statistics = values_of_norm * bytes(own_rows, 1, fp32);
  attention_norm_output = residual;
  attention_norm_statistics = norm_statistics;
  attention_norm_gradient = residual;
  post_attention_residual = residual;
  mlp_norm_output = residual;
  mlp_norm_statistics = norm_statistics;
  mlp_norm_gradient = residual;
  mlp_norm_chunk = bytes(piece, spec.width, element);
  post_mlp_residual = residual;
  output_norm_statistics = norm_statistics;
  embedding_sum = residual;
  embedding_norm_statistics = norm_statistics;

  log_sum_exp = bytes(rows, heads, fp32);
  attention_output_dots = log_sum_exp;
  attention_output_sums = 0;
  key_value_block = 0;
  key_value_block_gradient = 0;
  if (levers.ring()) {
    attention_output_sums = bytes(rows, spec.width / parts, fp32);
    key_value_block = bytes(rows, checked_product(2 * keys, depth), element);
    key_value_block_gradient = bytes(rows, checked_product(2 * keys, depth), fp32);
  }

  head_dense_output = of_all_rows;
  head_gelu_output = of_all_rows;
  head_norm_output = of_all_rows;
  head_norm_statistics = values_of_norm * row_values;
  head_norm_gradient = of_all_rows;
  logits = bytes(rows, spec.vocabulary, element);
  // As many rows as take no more than the residual, and at most a quarter.
  const std::uint64_t rows_of_residual = checked_product(rows, spec.width) / spec.vocabulary;
  logits_chunk = bytes(std::clamp<std::uint64_t>(rows_of_residual, 1, quarter), spec.vocabulary, element);
  tokens_and_labels =
      levers.packed() ? packed_batch_bytes(levers.sequences, rows) : token_batch_bytes(levers.sequences, levers.seq);

  adapter_product = 0;
  adapter_chunk = 0;
  if (levers.trained == Trained::adapters) {
    const std::uint64_t rank = levers.adapters.rank;
    adapter_product = bytes(rows, rank, element);
    adapter_chunk = bytes(piece, rank, element);
    for (const AdapterSlot& whole : adapter_slots(spec, levers.adapters.targets)) {
      const AdapterSlot slot = whole.of_part(parts);
      OfAdapters& of = slot.matrix == LayerMatrix::qkv          ? qkv_adapters
                       : slot.matrix == LayerMatrix::projection ? projection_adapters
                       : slot.matrix == LayerMatrix::up         ? up_adapters
                                                                : down_adapters;
      ++of.count;
      if (levers.adapters.dropout == 0) continue;
      of.dropped_input = bytes(rows, slot.in, element);
      of.dropped_chunk = bytes(piece, slot.in, element);
      of.masks = checked_sum(of.masks, bytes(rows, slot.in, 1));
    }
  }

  // So that sums of a few of them need no check.
  if (std::max({of_all_rows, gate_and_up, activation_output, probabilities, score_tile, key_value_gradient_sums,
                log_sum_exp, logits, row_values, qkv, tokens_and_labels, adapter_product, down_adapters.masks}) >
      UINT64_MAX / 64)
    throw std::length_error("a size does not fit 64 bits");

  row_losses = row_values;
  gathered_logits = 0;
  whole_batch_tokens_and_labels = 0;
  if (levers.data_parallel == DataParallel::first_device) {
    const std::uint64_t whole_batch = checked_product(levers.sequences, levers.replicas);
    const std::uint64_t all_rows = checked_product(whole_batch, levers.seq);
    row_losses = bytes(all_rows, 1, fp32);
    gathered_logits = bytes(all_rows, spec.vocabulary, element);
    whole_batch_tokens_and_labels = token_batch_bytes(whole_batch, levers.seq);
  }
}

}  // namespace oomlab::nn
