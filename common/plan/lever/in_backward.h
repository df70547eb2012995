#pragma once
// Optimizer in backward (chapter 13): gradients of a layer at a time, each used and freed in the backward pass.

#include "plan/lever/used_once.h"

namespace oomlab::plan::lever {

inline constexpr Option<bool> kInBackward{"in-backward", "Each gradient is used and freed in the backward pass"};

inline bool is_in_backward(const Levers& levers) { return levers.gradients == nn::GradientLife::optimizer_in_backward; }

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
  static const Lever lever{
      .name = "optimizer in backward",
      .chapter = "13_optimizer_memory",
      .changes = Lever::Changes::state,
      .options = {kInBackward},
      .words = {{"in-backward", is_in_backward}},
      .read =
          [](const OptionValues& options, Levers& levers) {
            if (options[kInBackward]) levers.gradients = nn::GradientLife::optimizer_in_backward;
          },
      .options_of = [](const Levers& levers) { return std::string(is_in_backward(levers) ? "--in-backward" : ""); },
      .differs = [](const Levers& a, const Levers& b) { return is_in_backward(a) != is_in_backward(b); },
      .take =
          [](const Levers& target, Levers& levers) {
            if (is_in_backward(target) || is_in_backward(levers)) levers.gradients = target.gradients;
          },
      .tries =
          [](const Reach&) {
            return each_of(std::vector{nn::GradientLife::always, nn::GradientLife::optimizer_in_backward},
                           [](Levers& levers, nn::GradientLife life) { levers.gradients = life; });
          },
      .refuses =
          [](const Work& work, const Levers& levers) {
            if (!is_in_backward(levers)) return std::string();
            return used_once_refuses(work, levers, "--in-backward uses a gradient");
          },
      .resident =
          [](const Work&, const Levers& levers, ByCategory& bytes) {
            if (is_in_backward(levers)) bytes[Category::gradients] = 0;
          },
      .apply =
          [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
            if (is_in_backward(levers)) step.gradients = levers.gradients;
          },
      .elsewhere = in_backward_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
