#pragma once
// Dropout with a mask of one byte a value (Srivastava et al., 2014, in the form that scales in training). Queued on the
// context's stream; nothing is allocated.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "memory/context.h"
#include "nn/ops/values.h"

namespace oomlab::nn {

/// mask[part.rows, part.columns] = that part of a whole mask, a byte a value. Each is 1 with the probability `kept`,
/// otherwise 0: a hash of seed, stream, and the row and column of the whole mask alone. So it can be drawn once more,
/// and whoever has a part of the rows or columns draws what the whole mask has there.
void draw_mask(Context& context, std::uint8_t* mask, const MatrixPart& part, float kept, std::uint64_t seed,
               std::uint64_t stream);
/// y[rows, width] = factor · x where the mask [rows, width] is 1, otherwise 0. Rows of x are `stride` elements apart.
template <class T>
void masked(Context& context, const T* x, std::size_t stride, const std::uint8_t* mask, float factor,
            std::type_identity_t<T>* y, std::size_t rows, std::size_t width);
/// y[i] += factor · x[i] where the mask is 1.
template <class T>
void add_masked(Context& context, T* y, const std::type_identity_t<T>* x, const std::uint8_t* mask, float factor,
                std::size_t count);

}  // namespace oomlab::nn
