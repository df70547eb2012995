#pragma once
// How weights of 16 bits are updated (chapter 13): in an FP32 copy, by stochastic rounding, or to nearest.

#include "plan/lever/offload.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::string> kWeightUpdate{
    "weight-update",
    "How 16-bit weights are updated: master (an FP32 copy), stochastic or stored (rounded at random, to nearest)",
    "stored master stochastic", false, "weights"};

inline void read_weight_update(const OptionValues& options, Levers& levers) {
  const auto name = options.find(kWeightUpdate);
  if (name) levers.optimizer.weights = nn::parse_weight_form(*name);
}

inline std::string weight_update_refuses(const Work&, const Levers& levers) {
  if (levers.precision != DType::fp32 || levers.optimizer.weights == nn::WeightForm::stored) return "";
  return fmt::format("--weight-update {} is for 16 bits; in fp32 the weights are their own master copy",
                     nn::name_of(levers.optimizer.weights));
}

/// Of the libraries named here only torchao's AdamW rounds at random. Others round to nearest, where an update of less
/// than half a step of BF16 is lost.
inline void weight_update_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (levers.optimizer.weights != nn::WeightForm::stochastic || is_offloaded(levers)) return;
  switch (levers.optimizer.rule) {
    case nn::UpdateRule::adamw:
      words.in_pytorch("optimizer = torchao.optim._AdamW(model.parameters(), bf16_stochastic_round=True)");
      words.nowhere(
          "FP32 moments beside BF16 weights: torchao's _AdamW keeps them in the weights' 16 bits; TrainingArguments "
          "have no name for it");
      break;
    case nn::UpdateRule::adamw8:
      words.in_pytorch("optimizer = torchao.optim.AdamW8bit(model.parameters(), bf16_stochastic_round=True)");
      words.in_trainer("optim=\"adamw_torch_8bit\", optim_args=\"bf16_stochastic_round=True\"");
      words.nowhere("bitsandbytes' AdamW8bit rounds BF16 weights to nearest: there small updates vanish");
      break;
    default:
      words.nowhere(
          "{} with stochastic rounding: torchao has it for AdamW only, and torch.optim rounds to nearest, where small "
          "updates vanish",
          nn::name_of(levers.optimizer.rule));
      return;
  }
  words.nowhere("DeepSpeed takes such an optimizer from its caller: it has no name for it in its JSON");
}

inline const Lever& weight_update() {
  using nn::WeightForm;
  static const Lever lever{
      .name = "weight update",
      .chapter = "13_optimizer_memory",
      .changes = Lever::Changes::state,
      .options = {kWeightUpdate},
      .words = {{"stochastic", [](const Levers& l) { return l.optimizer.weights == WeightForm::stochastic; }}},
      .read = read_weight_update,
      .options_of =
          [](const Levers& levers) {
            return levers.optimizer.weights == usual_weights(levers.precision)
                       ? ""
                       : fmt::format("--weight-update {}", nn::name_of(levers.optimizer.weights));
          },
      .differs =
          [](const Levers& from, const Levers& to) {
            const bool same_precision = from.precision == to.precision;
            return to.optimizer.weights != (same_precision ? from.optimizer.weights : usual_weights(to.precision));
          },
      .take = [](const Levers& target, Levers& levers) { levers.optimizer.weights = target.optimizer.weights; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector{WeightForm::stored, WeightForm::master, WeightForm::stochastic},
                           [](Levers& levers, WeightForm form) { levers.optimizer.weights = form; });
          },
      .refuses = weight_update_refuses,
      .numbers =
          [](const Work&, const Levers& levers) {
            const bool vanish = levers.precision != DType::fp32 && levers.optimizer.weights == WeightForm::stored;
            return vanish ? Numbers{Numbers::Change::other, "updates that vanish in rounding"} : Numbers{};
          },
      .elsewhere = weight_update_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
