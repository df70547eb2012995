#pragma once
// Residual networks (He et al., "Deep Residual Learning for Image Recognition", 2015) in FP32, with hand-written
// backward. What memory and operations they need: plan/resnet_step.h.
//
// A unit is a convolution and a batch norm, followed by a ReLU unless it is a projection; the last unit of a branch
// adds the shortcut before its ReLU. Kept for the backward pass: its input (the unit before made it), the convolution's
// output z, the norm's mean and 1/σ, and its own output y. But a projection's y is overwritten by the block's output,
// and ResNetForm::recompute_norms drops y inside a branch.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/context.h"
#include "nn/models/mlp.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/values.h"
#include "nn/optimizer/optimizer.h"
#include "plan/resnet_step.h"

namespace oomlab::nn {

class ResNet {
 public:
  /// Allocates and initialises: weights uniform with the variance 2 / (kernel² · out); gammas 1, in the last norm of a
  /// branch, too, and betas 0; running means 0 and variances 1 (category parameters); the head's weight uniform within
  /// ±1 / √features, its bias 0. `with_gradients` also allocates the gradients and the loss. Throws OutOfMemory:
  /// nothing stays allocated.
  ResNet(Context& context, const ResNetSpec& spec, std::uint64_t seed, bool with_gradients);

  const ResNetSpec& spec() const noexcept { return spec_; }
  /// Every tensor: of each unit "<name> weight", "<name> gamma", "<name> beta", in the order of units(), then "head
  /// weight" [classes, features] and "head bias". Valid as long as the model lives.
  std::vector<Parameter> parameters();
  /// What unit `number` in the order of units() computes with; and the head. Valid as long as the model lives.
  struct UnitTensors {
    const float *weight, *gamma, *beta;
    BatchNormState running;
  };
  UnitTensors unit(std::size_t number) noexcept;
  BatchNormState running(std::size_t number) noexcept { return unit(number).running; }
  /// logits[batch, classes] from features[batch, features].
  void head(Context& context, const float* features, float* logits, std::size_t batch);

  /// Forward and backward on batch.input [size, height, width, channels]: fills the gradients and the loss, and updates
  /// the running statistics. Phases "forward" and "backward". Throws OutOfMemory: parameters are unchanged, and what
  /// the step had allocated is free again, but running statistics, gradients and the loss may have changed;
  /// std::invalid_argument when `batch.input` has another size, or a layer would see less than its kernel;
  /// std::logic_error for a model that was made without gradients.
  void forward_backward(Context& context, Batch batch, InputSize size, const ResNetForm& form = {});
  /// forward_backward, then one step of the optimizer.
  void train_step(Context& context, Batch batch, InputSize size, Optimizer& optimizer, const ResNetForm& form = {});
  /// The loss of the last forward_backward, copied from the device (waits for the stream). 0 in plan mode. Throws
  /// std::logic_error for a model that was made without gradients.
  float loss(Context& context) const;
  /// FNV-1a over the bits of all parameters. 0 in plan mode.
  std::uint64_t fingerprint(Context& context) const;

  /// Inference: the logits [batch, classes]; every buffer is freed as soon as it was used, the input, too. Throws
  /// OutOfMemory, and std::invalid_argument as forward_backward().
  DeviceBuffer<float> forward(Context& context, DeviceBuffer<float> input, std::size_t batch, InputSize size,
                              const ResNetForm& form = {});

 private:
  struct Unit {
    DeviceBuffer<float> weight, gamma, beta, weight_gradient, gamma_gradient, beta_gradient, running_mean,
        running_variance;
  };
  struct Step;
  ResNetSpec spec_;
  std::vector<ConvolutionUnit> shapes_;
  std::vector<Unit> units_;
  DeviceBuffer<float> head_weight_, head_bias_, head_weight_gradient_, head_bias_gradient_, loss_;
};

}  // namespace oomlab::nn
