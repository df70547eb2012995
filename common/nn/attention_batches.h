#pragma once
// Attention is one product a sequence and head. Here they become calls of cuBLAS: a strided batch takes the heads of
// one sequence, or one head of all sequences, whichever makes fewer calls. Each call is a group.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "nn/attention.h"
#include "nn/ops.h"

namespace oomlab::nn {

/// Where the matrices of a tensor lie, one a sequence and head; distances in elements.
template <class T>
struct HeadMatrices {
  T* data;
  std::size_t row_stride, head_stride, sequence_stride;
};

class AttentionGroups {
 public:
  explicit AttentionGroups(const AttentionShape& shape) : shape_(shape), of_head_(shape.heads < shape.sequences) {}

  std::size_t count() const noexcept { return std::min(shape_.heads, shape_.sequences); }
  /// Matrices of a group.
  std::size_t matrices() const noexcept { return std::max(shape_.heads, shape_.sequences); }
  /// Of one group, from its matrix `matrix` and row `row` on.
  template <class T>
  Strided<T> of(std::size_t group, const HeadMatrices<T>& all, std::size_t matrix = 0,
                std::size_t row = 0) const noexcept {
    const std::size_t between_groups = of_head_ ? all.head_stride : all.sequence_stride;
    const std::size_t stride = of_head_ ? all.sequence_stride : all.head_stride;
    return {all.data + group * between_groups + matrix * stride + row * all.row_stride, all.row_stride, stride};
  }

  std::size_t depth() const noexcept { return shape_.width / shape_.heads; }
  float scale() const noexcept { return 1.0f / std::sqrt(static_cast<float>(depth())); }
  /// Q, K or V (0, 1, 2) in qkv [sequences, seq, 3, heads, depth].
  template <class T>
  HeadMatrices<T> in_qkv(T* qkv, std::size_t which) const noexcept {
    const std::size_t row = 3 * shape_.width;
    return {qkv + which * shape_.width, row, depth(), shape_.seq * row};
  }
  /// In a tensor [sequences, seq, heads, depth].
  template <class T>
  HeadMatrices<T> in_rows(T* rows) const noexcept {
    return {rows, shape_.width, depth(), shape_.seq * shape_.width};
  }
  /// In a tensor [sequences, heads, seq, seq].
  template <class T>
  HeadMatrices<T> in_squares(T* squares) const noexcept {
    const std::size_t square = shape_.seq * shape_.seq;
    return {squares, shape_.seq, square, shape_.heads * square};
  }

 private:
  AttentionShape shape_;
  bool of_head_;
};

}  // namespace oomlab::nn
