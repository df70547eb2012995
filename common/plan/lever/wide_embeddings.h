#pragma once
// 32-bit optimizer state of embeddings beside 8-bit state of all else (chapter 13).

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr Option<bool> kWideEmbeddings{"wide-embeddings", "With adamw8, embeddings keep moments of 32 bits"};

inline void wide_embeddings_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  const nn::OptimizerForm& optimizer = levers.optimizer;
  if (optimizer.rule != nn::UpdateRule::adamw8) return;
  const bool torchao = optimizer.weights == nn::WeightForm::stochastic;
  if (torchao && optimizer.wide_embeddings)
    words.nowhere(
        "32-bit moments of embeddings: torchao's AdamW8bit has no setting for them; the nearest is "
        "torchao.optim._AdamW for the embedding, with moments of 16 bits");
  if (torchao) return;
  if (optimizer.wide_embeddings)
    words.in_pytorch(
        "bitsandbytes.optim.GlobalOptimManager.get_instance().register_module_override(embedding, \"weight\", "
        "{{\"optim_bits\": 32}})");
  else
    words.nowhere(
        "8-bit moments of embeddings: the Trainer keeps those of embeddings in 32 bits, as --wide-embeddings does");
}

inline const Lever& wide_embeddings() {
  static const Lever lever{
      .name = "32-bit embedding state",
      .chapter = "13_optimizer_memory",
      .changes = Lever::Changes::state,
      .options = {kWideEmbeddings},
      .words = {{"wide", [](const Levers& l) { return l.optimizer.wide_embeddings; }}},
      .read = [](const OptionValues& options,
                 Levers& levers) { levers.optimizer.wide_embeddings = options[kWideEmbeddings]; },
      .options_of =
          [](const Levers& levers) { return std::string(levers.optimizer.wide_embeddings ? "--wide-embeddings" : ""); },
      .differs = [](const Levers& a,
                    const Levers& b) { return a.optimizer.wide_embeddings != b.optimizer.wide_embeddings; },
      .take = [](const Levers& target,
                 Levers& levers) { levers.optimizer.wide_embeddings = target.optimizer.wide_embeddings; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector<int>{0, 1},
                           [](Levers& levers, int wide) { levers.optimizer.wide_embeddings = wide == 1; });
          },
      .refuses =
          [](const Work&, const Levers& levers) {
            const bool without = levers.optimizer.wide_embeddings && levers.optimizer.rule != nn::UpdateRule::adamw8;
            return std::string(without ? "--wide-embeddings is about the moments of --optimizer adamw8" : "");
          },
      .elsewhere = wide_embeddings_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
