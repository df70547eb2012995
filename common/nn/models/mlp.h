#pragma once
// A multi-layer perceptron with hand-written backward. What memory it needs: plan/mlp_step.h.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/context.h"
#include "nn/ops/loss.h"
#include "nn/ops/values.h"
#include "nn/optimizer/optimizer.h"
#include "plan/mlp_step.h"

namespace oomlab::nn {

/// One batch of input on the device.
struct Batch {
  DeviceBuffer<float> input;  ///< [size, width], category activations, tag "input"
  DeviceBuffer<int> labels;   ///< [size], category data, tag "batch labels"
  std::size_t size = 0;
};
/// Allocates a batch; contents undefined (fill them with data::DeviceDataset::batch). Throws OutOfMemory.
Batch make_batch(Context& context, std::size_t batch, std::size_t width);

/// How a step treats its gradients.
struct StepOptions {
  bool accumulate = false;      ///< add to the gradients and to the loss instead of overwriting them
  std::size_t total_batch = 0;  ///< the mean is over this many rows; 0: over this batch
};

class Mlp {
 public:
  /// Allocates and initialises the parameters (He uniform weights, zero biases; a hash of seed, tensor and
  /// index), and with gradients also the gradients and the loss. Contents of the gradients are undefined
  /// until a backward pass. Throws OutOfMemory: nothing stays allocated.
  Mlp(Context& context, const MlpSpec& spec, std::uint64_t seed, bool with_gradients);

  const MlpSpec& spec() const noexcept { return spec_; }
  /// Every tensor, layer by layer, weight then bias. Valid as long as the model lives.
  std::vector<Parameter> parameters();

  /// Forward and backward: fills the gradients and the loss. Phases "forward" and "backward".
  /// Throws OutOfMemory: parameters are unchanged, everything the step had allocated is free again, and
  /// trying again with more memory gives the same bits (without `accumulate`, the old gradients do not
  /// matter).
  void forward_backward(Context& context, Batch batch, StepOptions options = {});
  /// forward_backward, then one step of the optimizer. On OutOfMemory the optimizer is unchanged too.
  void train_step(Context& context, Batch batch, Optimizer<float>& optimizer);
  /// The loss of the last forward_backward, copied from the device (waits for the stream). 0 in plan mode.
  float loss(Context& context) const;

  /// Inference: the logits [batch, classes]; the input and each activation are freed as soon as they were
  /// used.
  DeviceBuffer<float> forward(Context& context, DeviceBuffer<float> input, std::size_t batch);
  /// Rows of the batch that the model gets right. 0 in plan mode.
  std::size_t count_correct(Context& context, Batch batch);

  /// FNV-1a over the bits of all parameters, copied to the host in pieces of at most 1 MiB. 0 in plan mode.
  std::uint64_t fingerprint(Context& context) const;

  // Single layers, l = 1…L, for mitigations that arrange the step themselves.
  float* weight(std::size_t l) noexcept { return layers_[l - 1].weight.data(); }
  float* bias(std::size_t l) noexcept { return layers_[l - 1].bias.data(); }
  float* weight_gradient(std::size_t l) noexcept { return layers_[l - 1].weight_gradient.data(); }
  float* bias_gradient(std::size_t l) noexcept { return layers_[l - 1].bias_gradient.data(); }
  /// The device float that loss() reads.
  float* loss_buffer() noexcept { return loss_.data(); }

 private:
  struct Layer {
    DeviceBuffer<float> weight, bias, weight_gradient, bias_gradient;
  };
  MlpSpec spec_;
  std::vector<Layer> layers_;
  DeviceBuffer<float> loss_;
};

}  // namespace oomlab::nn
