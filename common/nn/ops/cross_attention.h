#pragma once
// Attention whose Q, K and V lie in buffers of their own: queries may attend to another tensor's rows, such as the pixels
// of an image to the tokens of a text (cross attention), or to their own. The three forms of nn/ops/attention.h, by the
// same products and kernels: where K and V have as many rows as Q, they give the bits that one buffer gives.
//
// AttentionShape: seq are the rows of Q, key_seq those of K and V (0: seq), a sequence each. All throw
// std::invalid_argument for packed sequences, and for causal attention to rows that are not the queries' own.

#include <type_traits>

#include "memory/context.h"
#include "nn/ops/attention.h"

namespace oomlab::nn {

/// Q [sequences, seq, heads · depth], K and V [sequences, key_seq, keys() · depth]; or their gradients.
template <class T>
struct SeparateQkv {
  T *q, *k, *v;
};

// ---- textbook

/// softmax(Q·Kᵀ / √depth) [sequences, heads, seq, key_seq]: a new buffer of activations ("attention probabilities").
template <class T>
DeviceBuffer<T> cross_attention_probabilities(Context& context, const AttentionShape& shape, const T* q, const T* k);
/// probabilities · V, to attended [sequences, seq, width].
template <class T>
void cross_attention_forward(Context& context, const AttentionShape& shape, const T* probabilities, const T* v,
                             T* attended);
/// From the gradient of attended to those of Q, K and V, which are overwritten. Allocates meanwhile the gradient of the
/// probabilities (activations).
template <class T>
void cross_attention_backward(Context& context, const AttentionShape& shape,
                              const SeparateQkv<std::type_identity_t<const T>>& in, const T* probabilities,
                              const T* d_attended, const SeparateQkv<std::type_identity_t<T>>& gradients);

// ---- tiled

/// attended [sequences, seq, width]; allocates the scores of one attention_tile() meanwhile, [matrices, rows, key_seq]
/// (activations).
template <class T>
void cross_attention_forward_tiled(Context& context, const AttentionShape& shape,
                                   const SeparateQkv<std::type_identity_t<const T>>& in, T* attended);
/// As cross_attention_backward(). Allocates meanwhile what attention_backward_tiled() does, without the gradients.
template <class T>
void cross_attention_backward_tiled(Context& context, const AttentionShape& shape,
                                    const SeparateQkv<std::type_identity_t<const T>>& in, const T* d_attended,
                                    const SeparateQkv<std::type_identity_t<T>>& gradients);

// ---- fused. Nothing is allocated. Throw std::invalid_argument where heads are wider than kFusedDepth.

/// attended [sequences, seq, width], and lse [sequences, heads, seq], null in inference: it is not kept.
template <class T>
void cross_attention_forward_fused(Context& context, const AttentionShape& shape,
                                   const SeparateQkv<std::type_identity_t<const T>>& in, T* attended, float* lse);
/// As cross_attention_backward(), from what the forward pass kept and attention_row_dots() gave.
template <class T>
void cross_attention_backward_fused(Context& context, const AttentionShape& shape,
                                    const SeparateQkv<std::type_identity_t<const T>>& in, const float* lse,
                                    const float* dots, const T* d_attended,
                                    const SeparateQkv<std::type_identity_t<T>>& gradients);

}  // namespace oomlab::nn
