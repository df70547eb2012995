#pragma once
// Optimizer in backward (chapter 13): gradients of a layer at a time, each used and freed in the backward pass.

#include "plan/lever/used_once.h"

namespace oomlab::plan::lever {

inline constexpr Option<bool> kInBackward{"in-backward", "Each gradient is used and freed in the backward pass"};

inline constexpr auto is_in_backward = has_life<nn::GradientLife::optimizer_in_backward>;

/// Laws: what has to see all gradients before the first one is used.
inline std::string in_backward_refuses(const Work& work, const Levers& levers) {
  if (!is_in_backward(levers)) return "";
  if (levers.precision == DType::fp16)
    return "--in-backward uses a gradient and frees it: an overflow in any layer would have to stop updates that are "
           "done; take bf16";
  if (micro_batch_of(work, levers) != share_of(work, levers))
    return "--in-backward uses a gradient and frees it: it cannot be added to another micro-batch's; leave "
           "--micro-batch out";
  return "";
}

inline void in_backward_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (!is_in_backward(levers)) return;
  words.in_pytorch(
      "each = {{p: make_optimizer([p]) for p in model.parameters()}}  # one of the above for each parameter");
  words.in_pytorch("def used(p): each[p].step(); each[p].zero_grad()  # set_to_none is the default");
  words.in_pytorch("for p in each: p.register_post_accumulate_grad_hook(used)");
  if (levers.optimizer.rule == nn::UpdateRule::sgd)
    words.nowhere(
        "a step within the backward pass: the Trainer has optim=\"lomo\", which is such a plain SGD; DeepSpeed has "
        "none");
  else
    words.nowhere(
        "a step within the backward pass: the Trainer has it for its own rules only (optim=\"lomo\", \"adalomo\"), "
        "DeepSpeed has none");
}

inline const Lever& in_backward() {
  static const Lever lever = [] {
    Lever own = used_once_lever<nn::GradientLife::optimizer_in_backward, kInBackward>("optimizer in backward",
                                                                                      "13_optimizer_memory");
    own.refuses = in_backward_refuses;
    own.elsewhere = in_backward_elsewhere;
    return own;
  }();
  return lever;
}

}  // namespace oomlab::plan::lever
