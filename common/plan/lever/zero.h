#pragma once
// ZeRO (chapter 07; Rajbhandari et al., 2020): replicas share out the state that they have in common.

#include "plan/lever/stream.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::size_t> kZero{"zero", "ZeRO stage among those of --dp and --cp: 0 to 3", 0, 3};

inline std::string zero_refuses(const Work&, const Levers& levers) {
  const Layout& grid = levers.ranks;
  if (grid.zero < 0 || grid.zero > 3) return fmt::format("--zero {} is not allowed; write 0 to 3", grid.zero);
  if (grid.zero > 0 && grid.replicas() == 1)
    return fmt::format("--zero {} shares out what the ranks of --dp or --cp have in common, and both are 1", grid.zero);
  return "";
}

inline void zero_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  const Layout& grid = levers.ranks;
  if (grid.tp > 1 && grid.zero == 3) words.nowhere("DeepSpeed's AutoTP goes with ZeRO 0 to 2, not with 3");
  if (grid.replicas() == 1) return;
  switch (grid.zero) {
    case 0: words.in_pytorch("model = DistributedDataParallel(model)"); return;
    case 1: words.in_pytorch("optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)"); break;
    case 2:
      words.in_pytorch("fully_shard(model, reshard_after_forward=False)  # keeps whole weights through a step only");
      break;
    default:
      words.in_pytorch("for layer in layers: fully_shard(layer)");
      words.in_pytorch("fully_shard(model)");
      break;
  }
  words.in_trainer("deepspeed=\"ds_config.json\"");
  words.in_deepspeed("\"zero_optimization\": {{\"stage\": {}{}{}}}", grid.zero,
                     is_offloaded(levers) ? std::string(", ") + kDeepSpeedOffload : "",
                     levers.streamed ? std::string(", ") + kDeepSpeedStream : "");
  if (grid.zero == 2)
    words.nowhere(
        "ZeRO-2 is nearest to fully_shard(reshard_after_forward=False), which shards weights between steps, too");
}

inline const Lever& zero() {
  static const Lever lever{
      .name = "ZeRO",
      .chapter = "07_multi_gpu",
      .changes = Lever::Changes::state,
      .options = {kZero},
      .words = {{"zero", [](const Levers& l) { return l.ranks.zero > 0; }}},
      .read = [](const OptionValues& options,
                 Levers& levers) { levers.ranks.zero = int(options.find(kZero).value_or(0)); },
      .options_of =
          [](const Levers& levers) { return levers.ranks.zero ? fmt::format("--zero {}", levers.ranks.zero) : ""; },
      .differs = [](const Levers& a, const Levers& b) { return a.ranks.zero != b.ranks.zero; },
      .take = [](const Levers& target, Levers& levers) { levers.ranks.zero = target.ranks.zero; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector{0, 1, 2, 3}, [](Levers& levers, int stage) { levers.ranks.zero = stage; });
          },
      .refuses = zero_refuses,
      .apply = [](const Work&, const Levers& levers, const RankCoordinates&,
                  nn::StepLevers& step) { step.zero = levers.ranks.zero; },
      .elsewhere = zero_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
