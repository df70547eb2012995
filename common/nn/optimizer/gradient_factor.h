#pragma once
// What all gradients are multiplied by: for clipping, and for a loss scale that stays.

#include <cstddef>
#include <span>

#include "memory/context.h"
#include "nn/optimizer/optimizer.h"
#include "plan/model/transformer.h"

namespace oomlab::nn {

/// The factor of all gradients: 1 / scale, or less where their norm, divided by scale, is above `clip` (0: never), or 0
/// where it is not finite: such a step is left out. *factor is on the device, and `parts`, factor_parts() floats.
template <class T>
void gradient_factor(Context& context, std::span<const ParameterOf<T>> parameters, float scale, float clip,
                     float* parts, float* factor);
/// Floats that gradient_factor() needs beside it.
std::size_t factor_parts(std::span<const TensorShape> shapes);

}  // namespace oomlab::nn
