#pragma once
// Selective recompute (chapter 08; Korthikanti et al., "Reducing activation recomputation", 2022): nothing is kept that
// is cheap to compute again.

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr Option<bool> kLean{
    "lean", "Keep nothing that is cheap to recompute: norms, GELU, the sum after the attention"};

inline const Lever& selective_recompute() {
  static const Lever lever{
      .name = "selective recompute",
      .chapter = "08_attention_and_loss",
      .changes = Lever::Changes::activations,
      .options = {kLean},
      .words = {{"lean", [](const Levers& l) { return l.lean; }}},
      .read = [](const OptionValues& options, Levers& levers) { levers.lean = options[kLean]; },
      .options_of = [](const Levers& levers) { return std::string(levers.lean ? "--lean" : ""); },
      .differs = [](const Levers& a, const Levers& b) { return a.lean != b.lean; },
      .take = [](const Levers& target, Levers& levers) { levers.lean = target.lean; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector<int>{0, 1}, [](Levers& levers, int lean) { levers.lean = lean == 1; });
          },
      .numbers = [](const Work&,
                    const Levers& levers) { return levers.lean ? Numbers{Numbers::Change::rounding} : Numbers{}; },
      .apply =
          [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
            if (levers.lean) step.form.keep = nn::Keep::lean();
            step.form.by_rows = levers.lean;
          },
      .elsewhere =
          [](const Work&, const Levers& levers, Elsewhere& words) {
            if (levers.lean)
              words.nowhere(
                  "keeping nothing that is cheap to compute again (norms, activation functions): eager PyTorch, the "
                  "Trainer and DeepSpeed have no switch; torch.compile decides so by itself, with "
                  "torch._functorch.config.activation_memory_budget");
          }};
  return lever;
}

}  // namespace oomlab::plan::lever
