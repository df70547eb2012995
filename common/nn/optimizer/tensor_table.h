#pragma once
// Many tensors, one launch: a step of an optimizer is one kernel, not one a tensor. The kernel gets the tensors'
// addresses as a parameter, so that no memory is allocated for them: from CUDA 12.1 on a kernel's parameters may take
// 32,764 bytes.

#include <algorithm>
#include <cstddef>

#include "nn/ops/kernel.h"

namespace oomlab::nn {

/// Addresses and counts of some tensors: a kernel's parameter, __grid_constant__, so that no thread makes a copy of it.
/// Tensor has a member `count`, in elements.
template <class Tensor, std::size_t kMost>
struct TensorTable {
  Tensor tensors[kMost];
  std::size_t size;
};

/// Tensors that one launch takes: more than all of BERT-large's 395.
inline constexpr std::size_t kTensorsOfLaunch = 512;

/// Starts kernel(table, arguments…) for tables that hold tensor_at(0) … tensor_at(n − 1) in order, each in the shape
/// that shape_of() gives for the elements of its largest tensor.
template <std::size_t kMost, class Tensor, class At, class ShapeOf, class... Parameters, class... Arguments>
void launch_over_tables(void (*kernel)(TensorTable<Tensor, kMost>, Parameters...), cudaStream_t stream, std::size_t n,
                        ShapeOf shape_of, At tensor_at, const Arguments&... arguments) {
  for (std::size_t first = 0; first < n; first += kMost) {
    TensorTable<Tensor, kMost> table;
    static_assert(sizeof table + (0 + ... + sizeof(Parameters)) + 64 <= 32764);
    table.size = std::min(kMost, n - first);
    std::size_t largest = 0;
    for (std::size_t i = 0; i < table.size; ++i) {
      table.tensors[i] = tensor_at(first + i);
      largest = std::max(largest, table.tensors[i].count);
    }
    launch(kernel, shape_of(largest), stream, table, arguments...);
  }
}
/// The same for a kernel that walks each tensor `lanes` elements at a time.
template <std::size_t kMost, class Tensor, class At, class... Parameters, class... Arguments>
void launch_over_tensors(void (*kernel)(TensorTable<Tensor, kMost>, Parameters...), cudaStream_t stream, std::size_t n,
                         std::size_t lanes, At tensor_at, const Arguments&... arguments) {
  launch_over_tables(
      kernel, stream, n, [&](std::size_t largest) { return shape_for_items(largest / lanes); }, tensor_at,
      arguments...);
}

}  // namespace oomlab::nn
