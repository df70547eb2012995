#pragma once
// Checkpoints in host memory (chapter 04; Rajbhandari et al., "ZeRO-Infinity", 2021): the input of a segment that is
// recomputed leaves the device beside the forward pass of its layer, and comes back before its backward pass.

#include "plan/lever/checkpoint.h"
#include "plan/plan.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::string> kCheckpoints{
    "checkpoints", "device, or host: inputs of segments that are recomputed wait in host memory", "device host"};

inline std::string checkpoints_refuses(const Work&, const Levers& levers) {
  if (!levers.checkpoints_on_host || levers.recompute != 0 || levers.solved) return "";
  return "--checkpoints host is about the inputs of segments that are recomputed: give --checkpoint, too";
}

/// Each input goes down once, and comes up once: as much in both directions.
inline void checkpoints_price(const Work& work, const Levers& levers, Price& price) {
  if (!levers.checkpoints_on_host) return;
  for (const std::uint64_t stage : kinds_of_stage(work.spec, levers.ranks)) {
    for (std::uint64_t replica = 0; replica < (levers.pack ? levers.ranks.dp : 1); ++replica) {
      const nn::StepLevers step = step_of(work, levers, {.replica = replica, .stage = stage});
      const double inputs = double(nn::recomputed_segments(step.schedule));
      const double rows = double(step.rows_of_step()) / double(step.row_shares());
      const double residual = rows * double(work.spec.width);
      price.checkpoint_bytes = std::max(price.checkpoint_bytes, inputs * residual * double(step.element_bytes));
    }
  }
}

inline void checkpoints_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (!levers.checkpoints_on_host) return;
  words.in_pytorch("with torch.autograd.graph.save_on_cpu(pin_memory=True): …  # around the checkpointed layers");
  words.in_trainer(
      "activation_checkpointing=True, activation_checkpointing_kwargs={{\"offload\": True}}  # transformers 5.23 or "
      "newer");
  words.in_deepspeed("\"activation_checkpointing\": {{\"cpu_checkpointing\": true}}");
  words.nowhere(
      "inputs that leave and come back beside the work: save_on_cpu, which the Trainer's offload calls, copies on the "
      "stream that computes");
}

inline const Lever& checkpoints() {
  static const Lever lever{
      .name = "checkpoints in host memory",
      .chapter = "04_checkpointing",
      .changes = Lever::Changes::activations,
      .options = {kCheckpoints},
      .words = {{"checkpoints", [](const Levers& l) { return l.checkpoints_on_host; }}},
      .read = [](const OptionValues& options,
                 Levers& levers) { levers.checkpoints_on_host = options.find(kCheckpoints) == "host"; },
      .options_of =
          [](const Levers& levers) { return std::string(levers.checkpoints_on_host ? "--checkpoints host" : ""); },
      .differs = [](const Levers& a, const Levers& b) { return a.checkpoints_on_host != b.checkpoints_on_host; },
      .take = [](const Levers& target, Levers& levers) { levers.checkpoints_on_host = target.checkpoints_on_host; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector<int>{0, 1},
                           [](Levers& levers, int on) { levers.checkpoints_on_host = on == 1; });
          },
      .refuses = checkpoints_refuses,
      .apply = [](const Work&, const Levers& levers, const RankCoordinates&,
                  nn::StepLevers& step) { step.checkpoints_on_host = levers.checkpoints_on_host; },
      .price = checkpoints_price,
      .elsewhere = checkpoints_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
