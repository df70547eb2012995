#pragma once
// What networks that are lists of layers need, without running them: a step's allocations and releases are
// simulated in the order of the work. It shares nothing with the code it predicts but the sizes of values, and a
// convolution's workspace.

#include <cstdint>

#include "plan/model/network.h"
#include "plan/optimizer_state.h"
#include "plan/peak.h"

namespace oomlab::nn {

/// How a step computes.
struct NetworkForm {
  ConvolutionWay way = ConvolutionWay::tiled;
  /// The norm and its activation write one buffer. Otherwise the norm's output has a buffer of its own, freed when the
  /// activation has read it: the backward pass does not need it.
  bool activation_in_place = true;
  /// What a convolution's norm and activation made is freed when the layers that read it have run, and recomputed from
  /// z in the backward pass; not behind a sum.
  bool recompute_norms = false;
};

/// What stays allocated between steps, beside the context's cuBLAS workspace: parameters and running statistics, and
/// when training gradients, the loss, and the optimizer's state.
ByCategory resident_for_training(const NetworkSpec& spec, UpdateRule optimizer);
/// The same of inference: parameters, and the running statistics of batch norms.
ByCategory resident_for_inference(const NetworkSpec& spec);
/// Peak of a program with one Context, one Network with gradients, one optimizer, and train_step. The caller adds its
/// dataset. Throws std::length_error and std::invalid_argument as shapes_of().
PeakBytes predict_training(const NetworkSpec& spec, std::uint64_t batch, InputSize size, UpdateRule optimizer,
                           const NetworkForm& form = {});
/// Peak of one Network without gradients and forward().
PeakBytes predict_inference(const NetworkSpec& spec, std::uint64_t batch, InputSize size, const NetworkForm& form = {});
/// Multiplications of a forward pass, each with an addition: of convolutions, linear layers, squeeze and excitation.
double multiply_adds(const NetworkSpec& spec, std::uint64_t batch, InputSize size);
/// Floating-point operations of a training step's matrix products, a multiplication and an addition counted as two:
/// these products but those of depthwise convolutions, which are none of matrices. What reads the input has no gradient
/// of it.
double step_flops(const NetworkSpec& spec, std::uint64_t batch, InputSize size);

}  // namespace oomlab::nn
