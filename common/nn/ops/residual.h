#pragma once
// Residuals: what is added to a stream of activations.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>
#include <type_traits>

#include "memory/context.h"

namespace oomlab::nn {

/// out = x + y + bias[width], all others [rows, width]; out may be x or y. bias may be null.
template <class T>
void add_residual(Context& context, const T* x, const T* y, const std::type_identity_t<T>* bias, T* out,
                  std::size_t rows, std::size_t width);

/// y[count] += x[count].
template <class T>
void add_to(Context& context, T* y, const T* x, std::size_t count);

}  // namespace oomlab::nn
