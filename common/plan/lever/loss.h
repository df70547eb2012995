#pragma once
// The form of the loss (chapter 08): logits of some rows at a time.

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::string> kLoss{"loss", "full, or chunked: logits of some rows at a time", "full chunked"};

inline void loss_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (levers.loss != nn::LossForm::chunked) return;
  words.in_pytorch(
      "loss = F.linear_cross_entropy(hidden, head.weight, targets, options=torch.nn.LinearCrossEntropyOptions())");
  words.in_trainer("use_liger_kernel=True");
  words.nowhere("how many rows a chunk of logits has is each library's own choice");
}

inline const Lever& loss() {
  using nn::LossForm;
  static const Lever lever{
      .name = "loss",
      .chapter = "08_attention_and_loss",
      .changes = Lever::Changes::activations,
      .options = {kLoss},
      .words = {{"loss", [](const Levers& l) { return l.loss != LossForm::full; }}},
      .read =
          [](const OptionValues& options, Levers& levers) {
            if (const auto name = options.find(kLoss)) levers.loss = nn::parse_loss(*name);
          },
      .options_of =
          [](const Levers& levers) {
            return levers.loss == LossForm::full ? "" : fmt::format("--loss {}", nn::name_of(levers.loss));
          },
      .differs = [](const Levers& a, const Levers& b) { return a.loss != b.loss; },
      .take = [](const Levers& target, Levers& levers) { levers.loss = target.loss; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector{LossForm::full, LossForm::chunked},
                           [](Levers& levers, LossForm form) { levers.loss = form; });
          },
      .numbers =
          [](const Work&, const Levers& levers) {
            return levers.loss == LossForm::full ? Numbers{} : Numbers{Numbers::Change::rounding};
          },
      .apply = [](const Work&, const Levers& levers, const RankCoordinates&,
                  nn::StepLevers& step) { step.form.loss = levers.loss; },
      .elsewhere = loss_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
