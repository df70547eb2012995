#pragma once
// Sums over the rows of a matrix: the gradient of a bias.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>
#include <type_traits>

#include "memory/context.h"

namespace oomlab::nn {

/// sums[width] (+)= the column sums of x[rows, width].
template <class T>
void column_sum(Context& context, const T* x, std::type_identity_t<T>* sums, std::size_t rows, std::size_t width,
                bool accumulate = false);

}  // namespace oomlab::nn
