#pragma once
// Where the fused kernels of attention find what is theirs.

#include <cuda_runtime.h>

#include <cstddef>

#include "nn/ops/token_share.h"

namespace oomlab::nn {

/// Where one sequence and head begins, and how rows follow; distances in elements. A matrix is a head of Q of a sequence, a
/// key matrix a head of K and V, which `sharers` heads of Q share. A sequence has `seq` rows of Q, and `key_seq` of K and of
/// V. Rows of Q are `query_stride` apart, those of its gradient `query_gradient_stride`, those of K, of V and of their
/// gradients `key_stride`. A kernel is handed that of all sequences, whose seq is the length of the longest, and looks at
/// of_sequence(). A parameter of kernels.
struct FusedLayout {
  std::size_t seq, key_seq, heads, keys, sharers, depth, width, tile;
  float scale;
  bool causal;
  std::size_t query_stride, key_stride, query_gradient_stride;
  TokenShare queries, keys_at;  ///< which tokens they are
  const int* offsets;           ///< of packed sequences, where each begins; null: they are seq apart
  std::size_t first_row = 0;    ///< of the sequence
  std::size_t first_key = 0;    ///< its first row of K and V
  __device__ FusedLayout of_sequence(std::size_t sequence) const {
    FusedLayout one = *this;
    one.first_row = offsets ? static_cast<std::size_t>(offsets[sequence]) : sequence * seq;
    one.first_key = sequence * key_seq;
    if (offsets) {
      one.seq = static_cast<std::size_t>(offsets[sequence + 1]) - one.first_row;
      one.key_seq = one.seq;
      one.first_key = one.first_row;
      one.queries = one.keys_at = {.seq = one.seq};
    }
    return one;
  }
  __device__ std::size_t row_of_q(std::size_t matrix, std::size_t row) const {
    return (first_row + row) * query_stride + matrix % heads * depth;
  }
  __device__ std::size_t row_of_query_gradient(std::size_t matrix, std::size_t row) const {
    return (first_row + row) * query_gradient_stride + matrix % heads * depth;
  }
  /// Of K, and of V.
  __device__ std::size_t row_of_key(std::size_t key_matrix, std::size_t row) const {
    return (first_key + row) * key_stride + key_matrix % keys * depth;
  }
  __device__ std::size_t key_matrix(std::size_t matrix) const { return matrix / sharers; }
  __device__ std::size_t row_of_output(std::size_t matrix, std::size_t row) const {
    return (first_row + row) * width + matrix % heads * depth;
  }
  /// Of one value a row and head: sequences one behind the other, [heads, seq] each.
  __device__ std::size_t value_of(std::size_t matrix, std::size_t row) const {
    return first_row * heads + matrix % heads * seq + row;
  }
  __device__ std::size_t rows_from(std::size_t first) const { return seq - first < tile ? seq - first : tile; }
  __device__ std::size_t keys_from(std::size_t first) const { return key_seq - first < tile ? key_seq - first : tile; }
  /// Keys that a query sees: the first ones.
  __host__ __device__ std::size_t seen_by(std::size_t query) const {
    return causal ? keys_at.up_to(queries.position(query)) : key_seq;
  }
};

}  // namespace oomlab::nn
