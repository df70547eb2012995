#pragma once
// The buffers of a training step of a transformer on one rank: part of step.h.

#include <cstdint>

#include "plan/step.h"

namespace oomlab::nn {

/// Every buffer of a step, in bytes: its shape, where it exists, how long it lives. Each is rounded to the granule.
///
/// R = B·S rows of width C, or of packed sequences as many as they have tokens, where [B, S] stands for rows of each
/// sequence's own number, and attention's tiles are those of the sequence that needs most; H heads of d values, Hk of K and V; F hidden units of the MLP; V the vocabulary; P parts of
/// a layer (tensor parallel); p pieces of the rows, 4 or as many as the MLP has tiles. Elements have E bytes, or 4 where it says fp32. Statistics are a mean and an rstd, in
/// llama an rstd alone. gpt and llama are pre-norm, bert is post-norm.
///
/// saved       from the forward pass until the backward pass has read it
/// saved if x  the same where Keep::x says so; otherwise freed when the forward pass has read it, and recomputed in the
///             backward pass
/// forward; backward; loss  until the last operation that reads it, there
///
/// Where ranks share out the tokens of sequences, S are a rank's own. With Ulysses it has all of them of its share of the
/// heads: of what depends on heads and S, H is divided by the ranks, and S multiplied.
///
/// Rs rows are all R of them, with sequence parallelism R/P.
///
/// A gradient without a line takes the place of what it is the gradient of.
struct StepBuffers {
  StepBuffers(const TransformerSpec& spec, const StepLevers& levers);

  // Around the layers
  std::uint64_t tokens_and_labels;  ///< 2 [R] int32     first, last stage a micro-batch's two passes; packed also
                                    ///<                                   positions [R] and offsets [B + 1]
  std::uint64_t embedding_sum;      ///< [Rs, C]         bert              saved
  std::uint64_t embedding_norm_statistics;  ///< 2 [Rs] fp32     bert              saved
  std::uint64_t residual;                   ///< [Rs, C]         every layer       saved: the layer's input
  std::uint64_t residual_gradient;          ///< [Rs, C]         every layer       all of the backward pass

  std::uint64_t all_rows;  ///< [R, C]          sequence parallel gathered from all parts, or to be summed up
                           ///<                                   over them: for an operation; 0 otherwise

  // Attention and the norm before it. A tile has the scores [Q, S] of M matrices
  std::uint64_t attention_norm_output;      ///< [Rs, C]         pre-norm          saved if norms
  std::uint64_t attention_norm_statistics;  ///< 2 [Rs] fp32     pre-norm          saved
  std::uint64_t attention_norm_gradient;    ///< [Rs, C]         pre-norm          backward
  std::uint64_t qkv;                        ///< [R, (H+2Hk)d/P] every layer       saved: query, key and value
  std::uint64_t qkv_gradient;               ///< [R, (H+2Hk)d/P] every layer       backward
  std::uint64_t probabilities;              ///< [B, H/P, S, S]  textbook          saved if probabilities
  std::uint64_t probabilities_gradient;     ///< [B, H/P, S, S]  textbook          backward
  std::uint64_t score_tile;                 ///< [M, Q, S]       tiled             forward; backward
  std::uint64_t score_tile_gradient;        ///< [M, Q, S]       tiled             backward
  std::uint64_t key_value_gradient_sums;    ///< [M, S, 2d] fp32 tiled, E < 4      backward, of many summands
  std::uint64_t log_sum_exp;                ///< [R, H/P] fp32   fused             saved
  std::uint64_t attention_output_dots;      ///< [R, H/P] fp32   fused             backward
  std::uint64_t attention_output_sums;      ///< [R, C/P] fp32   ring              forward; backward: gradient of Q
  std::uint64_t key_value_block;            ///< [R, 2Hk d/P]    ring              forward; backward: here, and the next
  std::uint64_t key_value_block_gradient;   ///< the same, fp32  ring              backward: here, and the next
  std::uint64_t attention_output;           ///< [R, C/P]        every layer       saved
  std::uint64_t attention_output_gradient;  ///< [R, C/P]        every layer       backward
  std::uint64_t post_attention_residual;    ///< [Rs, C]         every layer       saved if post_attention_residual

  // The MLP and the norm before it, which in bert is the first of the layer; there a second one follows
  std::uint64_t mlp_norm_output;      ///< [Rs, C]         every layer       saved if norms
  std::uint64_t mlp_norm_statistics;  ///< 2 [Rs] fp32     every layer       saved
  std::uint64_t mlp_norm_gradient;    ///< [Rs, C]         pre-norm          backward
  std::uint64_t mlp_norm_chunk;       ///< [R/p, C]        by rows, pre-norm backward: for output and gradient
  std::uint64_t gate_and_up;          ///< [R, F/P]        not by tiles      saved; llama: 2F, others: up alone
  std::uint64_t gate_and_up_tile;     ///< [R/p, F/P]      by tiles          forward: also for the output; backward
  std::uint64_t activation_output;    ///< [R, F/P]        not by tiles      saved if gelu
  std::uint64_t activation_gradient;  ///< [R, F/P]        not by tiles      backward
  std::uint64_t activation_chunk;     ///< [R/p, F/P]      by rows           forward, not by tiles; backward: for both
  std::uint64_t post_mlp_residual;    ///< [Rs, C]         bert              saved
  std::uint64_t output_norm_statistics;  ///< 2 [Rs] fp32     bert              saved

  // Adapters of rank r, of the matrix M of a layer, whose input has I columns. Nothing of them is saved but masks
  struct OfAdapters {
    std::uint64_t count = 0;          ///< adapters of the matrix
    std::uint64_t dropped_input = 0;  ///< [R, I]          dropout           forward; backward
    std::uint64_t dropped_chunk = 0;  ///< [R/p, I]        dropout, by rows  forward; backward
    std::uint64_t masks = 0;          ///< [R, I] bytes    dropout           saved: one an adapter; where a rank has its
                                      ///<                                   own rows, forward; backward: drawn again
  };
  OfAdapters qkv_adapters;
  OfAdapters projection_adapters;
  OfAdapters up_adapters;
  OfAdapters down_adapters;
  std::uint64_t adapter_product;  ///< [R, r]          M has adapters    forward; backward: with its gradient
  std::uint64_t adapter_chunk;    ///< [R/p, r]        the same, by rows forward; backward: with its gradient

  // Head and loss. R' = min(R/4, R·C/V), at least 1; N = R, or on DataParallel's first device the rows of all devices
  std::uint64_t head_dense_output;              ///< [R, C]          bert              saved
  std::uint64_t head_gelu_output;               ///< [R, C]          bert              saved
  std::uint64_t head_norm_output;               ///< [R, C]          last stage        saved
  std::uint64_t head_norm_statistics;           ///< 2 [R] fp32      last stage        saved
  std::uint64_t head_norm_gradient;             ///< [R, C]          last stage        backward
  std::uint64_t logits;                         ///< [R, V]          full loss         saved
  std::uint64_t logits_chunk;                   ///< [R', V]         chunked loss      loss, with its gradient
  std::uint64_t row_losses;                     ///< [N] fp32        last stage        loss
  std::uint64_t gathered_logits;                ///< [N, V]          first device      loss
  std::uint64_t whole_batch_tokens_and_labels;  ///< 2 [N] int32     first device      forward and loss
};

}  // namespace oomlab::nn
