#pragma once
// Where the fused kernels of attention find what is theirs.

#include <cuda_runtime.h>

#include <cstddef>

#include "nn/ops/token_share.h"

namespace oomlab::nn {

/// Where one sequence and head begins, and how rows follow; distances in elements. A matrix is a head of Q of a sequence, a
/// key matrix a head of K and V, which `sharers` heads of Q share. Rows of K and V are `key_stride` apart, and begin behind
/// `heads_before` heads: in qkv those of Q; rows of the gradient of Q are `query_gradient_stride` apart. A kernel is handed
/// that of all sequences, whose seq is the length of the longest, and looks at of_sequence(). A parameter of kernels.
struct FusedLayout {
  std::size_t seq, heads, keys, sharers, depth, width, qkv_width, tile;
  float scale;
  bool causal;
  std::size_t key_stride, heads_before, query_gradient_stride;
  TokenShare queries, keys_at;  ///< which tokens they are
  const int* offsets;           ///< of packed sequences, where each begins; null: they are seq apart
  std::size_t first_row = 0;    ///< of the sequence
  __device__ FusedLayout of_sequence(std::size_t sequence) const {
    FusedLayout one = *this;
    one.first_row = offsets ? static_cast<std::size_t>(offsets[sequence]) : sequence * seq;
    if (offsets) {
      one.seq = static_cast<std::size_t>(offsets[sequence + 1]) - one.first_row;
      one.queries = one.keys_at = {.seq = one.seq};
    }
    return one;
  }
  __device__ std::size_t row_of_q(std::size_t matrix, std::size_t row) const {
    return (first_row + row) * qkv_width + matrix % heads * depth;
  }
  __device__ std::size_t row_of_query_gradient(std::size_t matrix, std::size_t row) const {
    return (first_row + row) * query_gradient_stride + matrix % heads * depth;
  }
  /// Of K (1) and V (2).
  __device__ std::size_t row_of_key(std::size_t key_matrix, std::size_t which, std::size_t row) const {
    const std::size_t head = heads_before + (which - 1) * keys + key_matrix % keys;
    return (first_row + row) * key_stride + head * depth;
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
  /// Keys that a query sees: the first ones.
  __host__ __device__ std::size_t seen_by(std::size_t query) const {
    return causal ? keys_at.up_to(queries.position(query)) : seq;
  }
};

}  // namespace oomlab::nn
