#pragma once
// Attention, in three forms that compute the same: softmax(Q·Kᵀ / √depth) · V.
//
//   textbook  the probabilities are a matrix in memory, B·H·S² elements, kept for the backward pass (Vaswani et al.,
//             2017)
//   tiled     the scores of some queries at a time, through cuBLAS; computed again in the backward pass, nothing is
//             kept (after Rabe and Staats, "Self-attention does not need O(n²) memory", 2021)
//   fused     one kernel, which never stores a score: it meets the keys tile by tile, with a running maximum and sum,
//             and keeps the logarithm of each row's sum (Dao et al., "FlashAttention", 2022)
//
// All are deterministic: every sum has one owner and one order. Sequences that are packed (AttentionShape::packed) lie side
// by side in rows, and none sees another: textbook and tiled attention take one after the other, the fused kernels all of
// them at once, by their offsets. Either way each gets the bits that it would get alone.

#include "memory/context.h"
#include "nn/ops/token_share.h"
#include "plan/attention.h"
#include "plan/step_form.h"

namespace oomlab::nn {

// ---- textbook

/// softmax(Q·Kᵀ / √depth) [sequences, heads, seq, seq], or of packed sequences [heads, length, length] one behind the
/// other: a new buffer of activations.
template <class T>
DeviceBuffer<T> attention_probabilities(Context& context, const AttentionShape& shape, const T* qkv);
/// probabilities · V, to attended [rows, width].
template <class T>
void attention_forward(Context& context, const AttentionShape& shape, const T* qkv, const T* probabilities,
                       T* attended);
/// From the gradient of attended to that of qkv, a new buffer. Frees what it has read: d_attended, the probabilities,
/// qkv.
template <class T>
DeviceBuffer<T> attention_backward(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                   DeviceBuffer<T>& probabilities, DeviceBuffer<T> d_attended);

// ---- tiled

/// attended [rows, width]; allocates the scores of one tile meanwhile (activations).
template <class T>
void attention_forward_tiled(Context& context, const AttentionShape& shape, const T* qkv, T* attended);
/// As attention_backward(). Allocates two tiles meanwhile, and where T is shorter than float and a gradient of K and V
/// has several summands (there are several tiles, or heads share keys) FP32 sums for those of one group.
template <class T>
DeviceBuffer<T> attention_backward_tiled(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                         DeviceBuffer<T> d_attended);

// ---- fused

/// attended [rows, width], and the logarithm of the sum of each row's exponentials, `lse` [sequences, heads, seq];
/// of packed sequences [heads, length] one behind the other.
/// Throws std::invalid_argument where heads are wider than kFusedDepth.
template <class T>
void attention_forward_fused(Context& context, const AttentionShape& shape, const T* qkv, T* attended, float* lse);
/// dots, in the order of lse: of each row of attended with its gradient. What the backward pass needs of attended.
template <class T>
void attention_row_dots(Context& context, const AttentionShape& shape, const T* attended, const T* d_attended,
                        float* dots);
/// As attention_backward(); frees lse and dots, too.
template <class T>
DeviceBuffer<T> attention_backward_fused(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                         DeviceBuffer<float>& lse, DeviceBuffer<float>& dots,
                                         DeviceBuffer<T> d_attended);

// ---- fused, keys block by block: what ranks do that share out the tokens of every sequence (Liu et al., "Ring
// attention with blockwise transformers", 2023). The shape's seq are own tokens; a block has as many keys.

/// Which tokens the queries are, and which the keys and values of a block.
struct AttentionBlock {
  TokenShare queries, keys;
};
/// Queries of qkv [rows, heads + 2 · kv_heads, depth] attend to a block of keys and values kv [rows, 2 · kv_heads,
/// depth], all K before all V. attended [rows, width] and lse [sequences, heads, seq] become those of this block, or with
/// `goes_on` those of all blocks so far: what was there and what comes are merged by their log-sum-exps. In the first
/// block each query must see a key. Throws as attention_forward_fused().
template <class T>
void attention_block_forward(Context& context, const AttentionShape& shape, const AttentionBlock& block, const T* qkv,
                             const T* kv, float* attended, float* lse, bool goes_on);
/// Adds what this block gives to the gradients of Q, d_q [rows, width], and of the block itself, d_kv, as kv. lse and
/// dots are those of all blocks.
template <class T>
void attention_block_backward(Context& context, const AttentionShape& shape, const AttentionBlock& block, const T* qkv,
                              const T* kv, const T* d_attended, const float* lse, const float* dots, float* d_q,
                              float* d_kv);

}  // namespace oomlab::nn
