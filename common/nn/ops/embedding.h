#pragma once
// Embeddings of tokens and positions. A row of activations is one position of one sequence, [batch · seq, width].
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>
#include <type_traits>

#include "memory/context.h"
#include "nn/ops/token_share.h"
#include "plan/attention.h"

namespace oomlab::nn {

/// x[r] = token[tokens[r]] + position[where row first_row + r stands] + everywhere: x [rows, width], token [vocabulary,
/// width], position [positions, width] or null (rotary positions come later), everywhere [width] or null (a token type
/// that all have). Tokens must lie in 0…vocabulary−1. Rows are sequences of `share`; first_row: the number of row 0 in the
/// batch. of_row: where it is not null (on the device), the position of each row of the batch, in place of what `share`
/// says.
template <class T>
void embedding_forward(Context& context, const int* tokens, const T* token, const std::type_identity_t<T>* position,
                       const std::type_identity_t<T>* everywhere, T* x, std::size_t rows, const TokenShare& share,
                       std::size_t width, std::size_t first_row = 0, const int* of_row = nullptr);
/// dtoken[tokens[r]] += dx[r] for every row (a tied head has put its own gradient there before), and dposition, unless
/// null, of the positions of `share` (+)= the sums over the sequences: of share.seq rows each, or, where `packed` is not
/// null, of those of at most share.seq rows that lie side by side, of which `share` is the longest, whole. Without
/// atomics, so that the order is always the same.
template <class T>
void embedding_backward(Context& context, const int* tokens, const T* dx, T* dtoken, std::type_identity_t<T>* dposition,
                        std::size_t rows, const TokenShare& share, std::size_t width, bool accumulate_position = false,
                        const SequenceOffsets* packed = nullptr);

}  // namespace oomlab::nn
