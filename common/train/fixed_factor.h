#pragma once
// What all gradients are multiplied by when all of them are there: a loss scale that stays, undone, and clipping.

#include <span>
#include <vector>

#include "memory/context.h"
#include "nn/ops/values.h"
#include "nn/optimizer/gradient_factor.h"

namespace oomlab::train {

class FixedFactor {
 public:
  /// Of gradients of these tensors; `clip`: their largest norm, 0: any. Category workspace. Throws OutOfMemory.
  FixedFactor(Context& context, const std::vector<nn::TensorShape>& shapes, float loss_scale, float clip)
      : loss_scale_(loss_scale),
        clip_(clip),
        values_(context.buffer<float>(2, Category::workspace, "loss scale and factor")),
        sums_of_squares_(context.buffer<float>(nn::factor_parts(shapes), Category::workspace, "sums of squares")) {
    nn::fill(context, values_.data(), 1, loss_scale);
  }
  /// On the device: what the loss is multiplied by.
  const float* loss_scale() const noexcept { return values_.data(); }
  /// On the device: what these gradients are to be multiplied by.
  template <class T>
  const float* of_gradients(Context& context, std::span<const nn::ParameterOf<T>> parameters) {
    nn::gradient_factor<T>(context, parameters, loss_scale_, clip_, sums_of_squares_.data(), values_.data() + 1);
    return values_.data() + 1;
  }

 private:
  float loss_scale_;
  float clip_;
  DeviceBuffer<float> values_;
  DeviceBuffer<float> sums_of_squares_;
};

}  // namespace oomlab::train
