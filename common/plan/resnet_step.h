#pragma once
// What a residual network needs, without running it: a step's allocations and releases are simulated in the order of
// the work. It shares nothing with the code it predicts but the sizes of convolutions and their workspace.

#include <cstdint>

#include "plan/model/resnet.h"
#include "plan/optimizer.h"
#include "plan/peak.h"

namespace oomlab::nn {

/// How a step computes.
struct ResNetForm {
  ConvolutionWay way = ConvolutionWay::im2col;
  /// Inside a branch, what norm and ReLU make is freed when the next convolution has read it, and recomputed from z in
  /// the backward pass: one pass over memory for each, bit-equal.
  bool recompute_norms = false;
};

/// What stays allocated between steps, beside the context's cuBLAS workspace: parameters and running statistics, and
/// when training gradients, the loss, and the optimizer's state.
ByCategory resident_for_training(const ResNetSpec& spec, OptimizerKind optimizer);
ByCategory resident_for_inference(const ResNetSpec& spec);
/// Peak of a program with one Context, one ResNet with gradients, one optimizer, and train_step. The caller adds its
/// dataset. Throws std::length_error when a figure does not fit 64 bits, std::invalid_argument when the input is too
/// small.
PeakBytes predict_training(const ResNetSpec& spec, std::uint64_t batch, InputSize size, OptimizerKind optimizer,
                           const ResNetForm& form = {});
/// Peak of one ResNet without gradients and forward().
PeakBytes predict_inference(const ResNetSpec& spec, std::uint64_t batch, InputSize size, const ResNetForm& form = {});
/// Floating-point operations of the convolutions and the head in a training step, a multiplication and an addition
/// counted as two. The first convolution has no gradient of its input.
double step_flops(const ResNetSpec& spec, std::uint64_t batch, InputSize size);

}  // namespace oomlab::nn
