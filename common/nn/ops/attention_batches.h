#pragma once
// Attention is one product a sequence and head. Here they become calls of cuBLAS: a strided batch takes the heads of
// one sequence, or one head of all sequences, whichever makes fewer calls. Each call is a group. Where heads of Q share
// keys, a group has no two of them: what they add to the same gradient comes in one call after the other.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "nn/ops/attention.h"
#include "nn/ops/matmul.h"

namespace oomlab::nn {

/// Where the matrices of a tensor lie, one a sequence and head; distances in elements. Heads of Q that share keys are
/// `sharer_stride` apart, in K and V 0.
template <class T>
struct HeadMatrices {
  T* data;
  std::size_t row_stride, head_stride, sequence_stride, sharer_stride;  ///< head_stride: between heads of K and V
};

/// Of a block (each_diagonal_block()).
class AttentionGroups {
 public:
  explicit AttentionGroups(const AttentionShape& shape) : shape_(shape), of_head_(shape.keys() < shape.sequences) {}

  std::size_t count() const noexcept { return std::min(shape_.keys(), shape_.sequences) * shape_.sharers(); }
  /// Matrices of a group.
  std::size_t matrices() const noexcept { return std::max(shape_.keys(), shape_.sequences); }
  /// Whether the group is the first one with its keys, and the last one.
  bool first_of_keys(std::size_t group) const noexcept { return group % shape_.sharers() == 0; }
  bool last_of_keys(std::size_t group) const noexcept { return (group + 1) % shape_.sharers() == 0; }
  /// Of one group, from its matrix `matrix` and row `row` on.
  template <class T>
  Strided<T> of(std::size_t group, const HeadMatrices<T>& all, std::size_t matrix = 0,
                std::size_t row = 0) const noexcept {
    const std::size_t sharers = shape_.sharers();
    const std::size_t between_groups = of_head_ ? all.head_stride : all.sequence_stride;
    const std::size_t stride = of_head_ ? all.sequence_stride : all.head_stride;
    const std::size_t first = group / sharers * between_groups + group % sharers * all.sharer_stride;
    return {all.data + first + matrix * stride + row * all.row_stride, all.row_stride, stride};
  }

  std::size_t depth() const noexcept { return shape_.depth(); }
  float scale() const noexcept { return 1.0f / std::sqrt(static_cast<float>(shape_.depth())); }
  /// Q, K or V (0, 1, 2) in qkv [sequences, seq, heads + 2 · keys, depth].
  template <class T>
  HeadMatrices<T> in_qkv(T* qkv, std::size_t which) const noexcept {
    const std::size_t depth = shape_.depth(), row = shape_.qkv_width(), sequence = shape_.seq * row;
    if (which == 0) return {qkv, row, shape_.sharers() * depth, sequence, depth};
    return {qkv + (shape_.heads + (which - 1) * shape_.keys()) * depth, row, depth, sequence, 0};
  }
  /// In a tensor [sequences, seq, heads, depth].
  template <class T>
  HeadMatrices<T> in_rows(T* rows) const noexcept {
    const std::size_t depth = shape_.depth(), row = shape_.width;
    return {rows, row, shape_.sharers() * depth, shape_.seq * row, depth};
  }
  /// In a tensor [sequences, heads, seq, seq].
  template <class T>
  HeadMatrices<T> in_squares(T* squares) const noexcept {
    const std::size_t square = shape_.seq * shape_.seq;
    return {squares, shape_.seq, shape_.sharers() * square, shape_.heads * square, square};
  }

 private:
  AttentionShape shape_;
  bool of_head_;
};

}  // namespace oomlab::nn
