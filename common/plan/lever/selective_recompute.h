#pragma once
// Selective recompute (chapter 08; Korthikanti et al., "Reducing activation recomputation", 2022): nothing is kept that
// is cheap to compute again.

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr Option<bool> kSelectiveRecompute{
    "lean", "Keep nothing that is cheap to recompute: norms, GELU, the sum after the attention"};

inline const Lever& selective_recompute() {
  static const Lever lever{
      .name = "selective recompute",
      .chapter = "08_attention_and_loss",
      .changes = Lever::Changes::activations,
      .options = {kSelectiveRecompute},
      .words = {{"lean", [](const Levers& l) { return l.selective_recompute; }}},
      .read = [](const OptionValues& options,
                 Levers& levers) { levers.selective_recompute = options[kSelectiveRecompute]; },
      .options_of = [](const Levers& levers) { return std::string(levers.selective_recompute ? "--lean" : ""); },
      .differs = [](const Levers& a, const Levers& b) { return a.selective_recompute != b.selective_recompute; },
      .take = [](const Levers& target, Levers& levers) { levers.selective_recompute = target.selective_recompute; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector<int>{0, 1},
                           [](Levers& levers, int lean) { levers.selective_recompute = lean == 1; });
          },
      .numbers =
          [](const Work&, const Levers& levers) {
            return levers.selective_recompute ? Numbers{Numbers::Change::rounding} : Numbers{};
          },
      .apply =
          [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
            if (levers.selective_recompute) step.form.keep = nn::Keep::selective_recompute();
            step.form.by_rows = levers.selective_recompute;
          },
      .elsewhere =
          [](const Work&, const Levers& levers, Elsewhere& words) {
            if (levers.selective_recompute)
              words.nowhere(
                  "keeping nothing that is cheap to compute again (norms, activation functions): eager PyTorch, the "
                  "Trainer and DeepSpeed have no switch; torch.compile decides so by itself, with "
                  "torch._functorch.config.activation_memory_budget");
          }};
  return lever;
}

}  // namespace oomlab::plan::lever
