#pragma once
// Networks of images that are a list of layers, each of which reads what earlier ones made: MobileNet, U-Net, residual
// networks and lighter forms of them, in FP32 with hand-written backward. What they need: plan/network_step.h.
//
// Values are numbered: 0 is the input, i what layers[i − 1] made, [batch, height, width, channels], channels last. A
// layer reads `from` and perhaps `also`, both made before it. The last layer makes the logits: of each image, or of
// each pixel (a segmenter).
//
// Kept for the backward pass, beside what a layer says of itself below: a value, when a layer that reads it needs it
// for the gradient of its weights, or when its own ReLU comes behind a sum. All other values are freed after the last
// layer that reads them. The input is kept to the end.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/context.h"
#include "nn/models/mlp.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/values.h"
#include "nn/optimizer/optimizer.h"
#include "plan/network_step.h"

namespace oomlab::nn {

class Network {
 public:
  /// Allocates and initialises: convolutions uniform with the variance 2 / (kernel² · out), or 2 / kernel² where they
  /// are depthwise; gammas 1, betas 0; running means 0 and variances 1 (category parameters); linear weights uniform
  /// within ±1 / √in, biases 0. `with_gradients` also allocates gradients and the loss. Throws OutOfMemory: nothing
  /// stays allocated.
  Network(Context& context, const NetworkSpec& spec, std::uint64_t seed, bool with_gradients);

  const NetworkSpec& spec() const noexcept { return spec_; }
  /// Every tensor, layer by layer: "<name> weight", "<name> gamma", "<name> beta" of convolutions (no weight, where it
  /// is shared), "<name> weight" and "<name> bias" of linear layers, "<name> squeeze weight", "… squeeze bias", "…
  /// excite weight", "… excite bias". Valid as long as the model lives, also when it is moved.
  std::vector<Parameter> parameters();
  /// Running statistics: "<name> running mean" and "<name> running variance". Without gradients.
  std::vector<Parameter> statistics();

  /// What layer `number`, a convolution or linear, computes with. `scale`: a norm's gamma, null without a norm; `shift`:
  /// its beta, or the bias. Valid as long as the model lives.
  struct LayerTensors {
    const float *weight, *scale, *shift;
    BatchNormState running;
  };
  LayerTensors tensors(std::size_t number) noexcept;

  /// Forward and backward on batch.input [size, height, width, channels], with labels() labels: fills the gradients and
  /// the loss (the mean over all labels), and updates the running statistics. Phases "forward" and "backward". Throws
  /// OutOfMemory: parameters are unchanged, and what the step had allocated is free again, but running statistics,
  /// gradients and the loss may have changed; std::invalid_argument when the batch has another size, and as
  /// shapes_of(); std::logic_error for a model without gradients.
  void forward_backward(Context& context, Batch batch, InputSize size, const NetworkForm& form = {});
  /// forward_backward, then one step of the optimizer.
  void train_step(Context& context, Batch batch, InputSize size, Optimizer<float>& optimizer,
                  const NetworkForm& form = {});
  /// The loss of the last forward_backward, copied from the device (waits for the stream). 0 in plan mode. Throws
  /// std::logic_error for a model without gradients.
  float loss(Context& context) const;
  /// FNV-1a over the bits of all parameters. 0 in plan mode.
  std::uint64_t fingerprint(Context& context) const;

  /// Inference: the logits [labels(), classes]; every buffer is freed as soon as it was used, the input, too. Norms
  /// work in place. Throws as forward_backward().
  DeviceBuffer<float> forward(Context& context, DeviceBuffer<float> input, std::size_t batch, InputSize size,
                              const NetworkForm& form = {});

 private:
  struct Tensor {
    DeviceBuffer<float> value, gradient;
  };
  struct Unit {
    std::vector<Tensor> tensors;  // in the order of parameters()
    DeviceBuffer<float> running_mean, running_variance;
  };
  struct Step;
  std::size_t owner(std::size_t layer) const;
  NetworkSpec spec_;
  std::vector<Unit> units_;
  DeviceBuffer<float> loss_;
};

}  // namespace oomlab::nn
