#pragma once
// What the levers have in common that use a gradient as soon as it is there, and free it: in_backward.h and offload.h.

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

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
      .apply =
          [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
            if (has_life<kLife>(levers)) step.gradients = levers.gradients;
          },
  };
}

}  // namespace oomlab::plan::lever
