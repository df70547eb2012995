#pragma once
// What the levers have in common that use a gradient as soon as it is there, and free it: in_backward.h and offload.h.

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

/// Why a gradient that is gone after its layer's backward pass is not enough; empty when it is. `what`: "--offload sends
/// a gradient to the host".
inline std::string used_once_refuses(const Work& work, const Levers& levers, const char* what) {
  if (levers.ranks.ranks() > 1)
    return "several ranks add their gradients up after the backward pass: leave --in-backward and --offload out";
  if (levers.precision == DType::fp16)
    return fmt::format("{} and frees it: an overflow in any layer would have to stop updates that are done; take bf16",
                       what);
  if (micro_batch_of(work, levers) != share_of(work, levers))
    return fmt::format("{} and frees it: it cannot be added to another micro-batch's; leave --micro-batch out", what);
  return "";
}

}  // namespace oomlab::plan::lever
