#pragma once
// What a step keeps in the host's memory: state that is updated there, and what comes and goes between it and a device.

#include <cstdint>

#include "plan/host_bytes.h"
#include "plan/step.h"

namespace oomlab::nn {

/// Host memory of a rank. Managed: moments that are paged (OptimizerForm). All else is pinned. Frozen weights that are
/// streamed are there, as they are stored. With n parameters of E bytes that the rank updates, K bytes of the optimizer's
/// state for each, and U parameters in the largest unit of these, where gradients are offloaded:
///
///   state         K n, by tensors, or by shards of units
///   weights       E n where they are streamed, or there is no master copy among the state; otherwise two pieces, 2 E U,
///                 on their way up
///   gradients     two pieces, 2 E U, on their way down
///   sums          E n where a step has several micro-batches, or a loss scale: no update may begin before all
///                 gradients are there
///
/// and where inputs of segments wait there, a residual for each segment that is recomputed, of each micro-batch that is in
/// flight. Each buffer is rounded to the granule on its own. (Ren et al., "ZeRO-Offload", 2021; "ZeRO-Infinity",
/// Rajbhandari et al., 2021.) Throws std::length_error.
HostBytes host_bytes(const TransformerSpec& spec, const StepLevers& levers);

/// Of host memory, read and written by the CPU in a step's updates: the state twice, the gradient, the weight that goes
/// up, and the weight that was there where it is not part of the state.
double host_update_bytes(const TransformerSpec& spec, const StepLevers& levers);

}  // namespace oomlab::nn
