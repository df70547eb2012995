#pragma once
// Attention is one product a sequence and head. Here they become calls of cuBLAS: a strided batch takes the heads of
// one sequence, or one head of all sequences, whichever makes fewer calls. Each call is a group. Where heads of Q share
// keys, a group has no two of them: what they add to the same gradient comes in one call after the other.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>

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

/// Where Q, K and V lie, or their gradients, and how far apart the rows of Q are, and those of K and V; in elements.
template <class T>
struct QkvRows {
  T *q, *k, *v;
  std::size_t query_stride, key_stride;
  /// Without the first `rows` rows.
  QkvRows from(std::size_t rows) const noexcept {
    return {q + rows * query_stride, k + rows * key_stride, v + rows * key_stride, query_stride, key_stride};
  }
};
/// In one buffer [rows, heads + 2 · keys, depth].
template <class T>
QkvRows<T> in_one_buffer(const AttentionShape& shape, T* qkv) {
  T* const k = qkv + shape.heads * shape.depth();
  return {qkv, k, k + shape.keys() * shape.depth(), shape.qkv_width(), shape.qkv_width()};
}
/// In three. Throws as nn/ops/cross_attention.h says.
template <class T>
QkvRows<T> in_three_buffers(const AttentionShape& shape, T* q, T* k, T* v) {
  if (shape.packed) throw std::invalid_argument("packed sequences have Q, K and V in one buffer");
  if (shape.causal && shape.key_length() != shape.seq)
    throw std::invalid_argument("causal attention has as many keys as queries, not " +
                                std::to_string(shape.key_length()) + " for " + std::to_string(shape.seq));
  return {q, k, v, shape.width, shape.keys() * shape.depth()};
}

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
  /// Q, K or V (0, 1, 2).
  template <class T>
  HeadMatrices<T> in_qkv(const QkvRows<T>& qkv, std::size_t which) const noexcept {
    const std::size_t depth = shape_.depth();
    if (which == 0) return {qkv.q, qkv.query_stride, shape_.sharers() * depth, shape_.seq * qkv.query_stride, depth};
    return {which == 1 ? qkv.k : qkv.v, qkv.key_stride, depth, shape_.key_length() * qkv.key_stride, 0};
  }
  /// In a tensor [sequences, seq, heads, depth].
  template <class T>
  HeadMatrices<T> in_rows(T* rows) const noexcept {
    const std::size_t depth = shape_.depth(), row = shape_.width;
    return {rows, row, shape_.sharers() * depth, shape_.seq * row, depth};
  }
  /// In a tensor [sequences, heads, seq, key length].
  template <class T>
  HeadMatrices<T> in_squares(T* squares) const noexcept {
    const std::size_t columns = shape_.key_length(), square = shape_.seq * columns;
    return {squares, columns, shape_.sharers() * square, shape_.heads * square, square};
  }

 private:
  AttentionShape shape_;
  bool of_head_;
};

}  // namespace oomlab::nn
