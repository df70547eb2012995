#pragma once
// What a step keeps in the host's memory: state that is updated there, and what comes and goes between it and a device.

#include <cstdint>

#include "plan/step.h"

namespace oomlab::nn {

/// Pinned host memory of a rank whose gradients are offloaded (GradientLife::offloaded), and of one whose frozen weights
/// are streamed: those; otherwise 0. With n parameters of E bytes that the rank updates, K bytes of the optimizer's state for each, and U parameters in the largest unit:
///
///   state         K n, by tensors, or by shards of units
///   weights       E n where they are streamed, or there is no master copy among the state; otherwise two pieces, 2 E U,
///                 on their way up
///   gradients     two pieces, 2 E U, on their way down
///   sums          E n where a step has several micro-batches, or a loss scale: no update may begin before all
///                 gradients are there
///
/// Each buffer is rounded to the granule on its own. (Ren et al., "ZeRO-Offload", 2021.) Throws std::length_error.
std::uint64_t pinned_bytes(const TransformerSpec& spec, const StepLevers& levers);

/// Of host memory, read and written by the CPU in a step's updates: the state twice, the gradient, the weight that goes
/// up, and the weight that was there where it is not part of the state.
double host_update_bytes(const TransformerSpec& spec, const StepLevers& levers);

}  // namespace oomlab::nn
