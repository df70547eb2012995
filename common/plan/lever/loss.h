#pragma once
// The form of the loss (chapter 08): logits of some rows at a time.

#include "plan/lever/form.h"

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
  static const Lever lever = [] {
    Lever own = form_lever<&Levers::loss, kLoss, nn::parse_loss>("08_attention_and_loss");
    own.apply = [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
      step.form.loss = levers.loss;
    };
    own.elsewhere = loss_elsewhere;
    return own;
  }();
  return lever;
}

}  // namespace oomlab::plan::lever
