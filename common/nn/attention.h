#pragma once
// Attention as the textbook has it: its probabilities are a matrix in memory (Vaswani et al., 2017).

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

/// Q, K and V of `sequences` · `seq` rows lie in qkv [rows, 3, heads, width / heads]. With several parts, heads and
/// width are those of this part.
struct AttentionShape {
  std::size_t sequences, seq, heads, width;
  bool causal;  ///< row q sees rows 0…q only
  std::size_t matrices() const { return checked_product(sequences, heads); }
};

/// softmax(Q·Kᵀ / √depth) [sequences, heads, seq, seq]: a new buffer of activations.
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

}  // namespace oomlab::nn
