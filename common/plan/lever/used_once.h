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

template <nn::GradientLife kLife>
bool has_life(const Levers& levers) {
  return levers.gradients == kLife;
}

/// All that does not tell one from the other: a flag, which gives gradients this life.
template <nn::GradientLife kLife, const Option<bool>& kFlag>
Lever used_once_lever(const char* name, const char* chapter) {
  return {
      .name = name,
      .chapter = chapter,
      .changes = Lever::Changes::state,
      .options = {kFlag},
      .words = {{kFlag.name, has_life<kLife>}},
      .read =
          [](const OptionValues& options, Levers& levers) {
            if (options[kFlag]) levers.gradients = kLife;
          },
      .options_of = [](const Levers& levers) { return has_life<kLife>(levers) ? "--" + std::string(kFlag.name) : ""; },
      .differs = [](const Levers& a, const Levers& b) { return has_life<kLife>(a) != has_life<kLife>(b); },
      .take =
          [](const Levers& target, Levers& levers) {
            if (has_life<kLife>(target) || has_life<kLife>(levers)) levers.gradients = target.gradients;
          },
      .tries =
          [](const Reach&) {
            return each_of(std::vector{nn::GradientLife::always, kLife},
                           [](Levers& levers, nn::GradientLife life) { levers.gradients = life; });
          },
      .resident =
          [](const Work&, const Levers& levers, ByCategory& bytes) {
            if (has_life<kLife>(levers)) bytes[Category::gradients] = 0;
          },
      .apply =
          [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
            if (has_life<kLife>(levers)) step.gradients = levers.gradients;
          },
  };
}

}  // namespace oomlab::plan::lever
