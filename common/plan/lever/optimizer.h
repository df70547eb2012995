#pragma once
// The rule of the optimizer (chapter 13): bytes of state for a parameter.

#include "plan/lever/offload.h"
#include "plan/optimizer_state.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::string> kOptimizer{"optimizer", "adamw, adamw8 (moments in 8 bits), adafactor or sgd",
                                                "adamw adamw8 adafactor sgd"};

/// With weights that are rounded at random, lever/weight_update.h names the optimizer; with offload, lever/offload.h.
inline void optimizer_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (is_offloaded(levers)) return;
  if (levers.optimizer.weights == nn::WeightForm::stochastic) return;
  switch (levers.optimizer.rule) {
    case nn::UpdateRule::adamw:
      words.in_pytorch("optimizer = torch.optim.AdamW(model.parameters(), fused=True)");
      words.in_trainer("optim=\"adamw_torch_fused\"");
      return;
    case nn::UpdateRule::adamw8:
      words.in_pytorch("optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())");
      words.in_trainer("optim=\"adamw_bnb_8bit\"");
      words.nowhere("DeepSpeed takes such an optimizer from its caller: it has no name for it in its JSON");
      return;
    case nn::UpdateRule::adafactor:
      words.in_pytorch("optimizer = torch.optim.Adafactor(model.parameters())");
      words.in_trainer("optim=\"adafactor\"");
      return;
    case nn::UpdateRule::sgd:
    case nn::UpdateRule::momentum:
      words.in_pytorch("optimizer = torch.optim.SGD(model.parameters(){})",
                       nn::state_buffers(levers.optimizer.rule) ? ", momentum=0.9" : "");
      words.in_trainer("optim=\"sgd\"");
      return;
  }
}

/// With --tp each part factors its own rows and columns of a matrix, as Megatron-LM's ranks do. ZeRO's shards are pieces
/// of a flat layer.
inline std::string optimizer_refuses(const Work&, const Levers& levers) {
  if (levers.optimizer.rule != nn::UpdateRule::adafactor || levers.ranks.zero == 0) return "";
  return "--optimizer adafactor keeps means of rows and columns, and a rank of --zero has a flat piece of a layer, "
         "which has none; take adamw8";
}

inline Numbers optimizer_numbers(const Work&, const Levers& levers) {
  if (levers.optimizer.rule == nn::UpdateRule::adamw) return {};
  if (levers.optimizer.rule == nn::UpdateRule::adamw8) return {Numbers::Change::fewer_bits, "moments of 8 bits"};
  return {Numbers::Change::other, "another rule"};
}

inline const Lever& optimizer() {
  using nn::UpdateRule;
  static const Lever lever{
      .name = "optimizer",
      .chapter = "13_optimizer_memory",
      .changes = Lever::Changes::state,
      .options = {kOptimizer},
      .words = {{"adamw8", [](const Levers& l) { return l.optimizer.rule == UpdateRule::adamw8; }}},
      .read =
          [](const OptionValues& options, Levers& levers) {
            if (const auto name = options.find(kOptimizer)) levers.optimizer.rule = nn::parse_update_rule(*name);
          },
      .options_of =
          [](const Levers& levers) {
            return levers.optimizer.rule == UpdateRule::adamw
                       ? ""
                       : fmt::format("--optimizer {}", nn::name_of(levers.optimizer.rule));
          },
      .differs = [](const Levers& a, const Levers& b) { return a.optimizer.rule != b.optimizer.rule; },
      .take = [](const Levers& target, Levers& levers) { levers.optimizer.rule = target.optimizer.rule; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector{UpdateRule::adamw, UpdateRule::adamw8, UpdateRule::adafactor, UpdateRule::sgd},
                           [](Levers& levers, UpdateRule rule) { levers.optimizer.rule = rule; });
          },
      .refuses = optimizer_refuses,
      .numbers = optimizer_numbers,
      .apply = [](const Work&, const Levers& levers, const RankCoordinates&,
                  nn::StepLevers& step) { step.optimizer = levers.optimizer; },
      .elsewhere = optimizer_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
