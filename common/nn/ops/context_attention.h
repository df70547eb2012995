#pragma once
// Attention of ranks that share out the tokens of every sequence (context parallelism). All else in a layer is done row by
// row; here a query meets keys of others, in one of two ways:
//
//   ring      each rank keeps its queries, and blocks of keys and values go round (Liu et al., "Ring attention with
//             blockwise transformers", 2023). What a query has got from one block and from the next is merged by
//             log-sum-exp. In the backward pass keys and values go round once more, and their gradients with them, to
//             whom each rank adds its own; after as many steps as there are ranks they are home.
//   Ulysses   ranks exchange rows for heads: each has all tokens of some heads, and any form of attention does the rest
//             (Jacobs et al., "DeepSpeed Ulysses", 2023).

#include <cstddef>
#include <functional>
#include <initializer_list>

#include "memory/context.h"
#include "nn/ops/attention.h"
#include "nn/ops/token_share.h"
#include "plan/context_form.h"

namespace oomlab::nn {

/// The ranks that share out tokens, as one of them sees it. What they send each other is queued on the context's stream.
struct TokenRanks {
  std::size_t ranks = 1, rank = 0;
  ContextForm form = ContextForm::ring;
  /// A buffer that goes round, and room for the one that comes.
  struct Passed {
    const void* own;
    void* others;
    std::size_t bytes;
  };
  /// All of these at once: own to the next rank, others from the one before.
  std::function<void(Context&, std::initializer_list<Passed>)> pass_on;
  /// Of own, part p goes to rank p; others has room for as many parts, in the order of the ranks that they come from.
  std::function<void(Context&, const void* own, void* others, std::size_t bytes_of_part)> exchange;

  bool ring() const { return ranks > 1 && form == ContextForm::ring; }
  bool ulysses() const { return ranks > 1 && form == ContextForm::ulysses; }
  /// What rank number r has of sequences of `all` tokens.
  TokenShare share_of(std::size_t r, std::size_t all, bool causal) const {
    return token_share(all, ranks, r, ring() && causal);
  }
};

/// attended [rows, width] of own queries, a new buffer of activations, from qkv of own rows; lse as attention_block_forward().
/// The shape's seq are own tokens. Allocates meanwhile two blocks of keys and values, and attended in FP32.
template <class T>
DeviceBuffer<T> ring_attention_forward(Context& context, const AttentionShape& shape, const TokenRanks& ranks,
                                       const T* qkv, float* lse);
/// As attention_backward_fused(), of own rows. Allocates meanwhile two blocks of keys and values, and FP32 gradients of
/// two blocks and of own queries.
template <class T>
DeviceBuffer<T> ring_attention_backward(Context& context, const AttentionShape& shape, const TokenRanks& ranks,
                                        DeviceBuffer<T>& qkv, DeviceBuffer<float>& lse, DeviceBuffer<float>& dots,
                                        DeviceBuffer<T> d_attended);

/// Of rows [sequences, seq, …] some columns hold heads of Q, of K and of V, and others have their own. With Ulysses each
/// rank has all tokens of its share of the heads: this is the shape of attention there.
AttentionShape shape_of_heads(const AttentionShape& of_rows, const TokenRanks& ranks);
/// What is exchanged: rows of qkv, or of what they attend to.
enum class HeadRows { qkv, attended };
/// From own rows of all heads, [rows, …], to all tokens of own heads, as large; and back. Each takes the place of what it
/// is given; one more buffer of that size is there meanwhile. `of_rows`: its seq are own tokens.
template <class T>
DeviceBuffer<T> rows_to_heads(Context& context, const AttentionShape& of_rows, const TokenRanks& ranks, HeadRows which,
                              DeviceBuffer<T> rows, const char* tag);
template <class T>
DeviceBuffer<T> heads_to_rows(Context& context, const AttentionShape& of_rows, const TokenRanks& ranks, HeadRows which,
                              DeviceBuffer<T> heads, const char* tag);

}  // namespace oomlab::nn
