#pragma once
// Paged moments (chapter 13; Dettmers et al., "QLoRA", 2023): AdamW's moments in managed memory. Their pages come to the
// device when they are updated, and leave when it has no room for them.

#include "plan/host_state.h"
#include "plan/lever/offload.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::string> kMoments{
    "moments", "device, or paged: AdamW's moments are in managed memory, and their pages come when they are used",
    "device paged"};

inline std::string moments_refuses(const Work&, const Levers& levers) {
  if (!levers.optimizer.paged_moments) return "";
  if (is_offloaded(levers))
    return "--moments paged has pages for a device's updates, and with --offload the CPU updates";
  if (levers.optimizer.rule == nn::UpdateRule::adamw || levers.optimizer.rule == nn::UpdateRule::adamw8) return "";
  return fmt::format("--moments paged is about AdamW's two moments, which --optimizer {} does not have",
                     nn::name_of(levers.optimizer.rule));
}

inline void moments_price(const Work& work, const Levers& levers, Price& price) {
  if (!levers.optimizer.paged_moments) return;
  for (const std::uint64_t stage : kinds_of_stage(work.spec, levers.ranks)) {
    const nn::StepLevers step = step_of(work, levers, {.stage = stage});
    price.paged_bytes = std::max(price.paged_bytes, double(nn::paged_state_bytes(work.spec, step)));
  }
}

inline void moments_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (!levers.optimizer.paged_moments) return;
  const bool codes = levers.optimizer.rule == nn::UpdateRule::adamw8;
  words.in_pytorch("optimizer = bitsandbytes.optim.{}(model.parameters())",
                   codes ? "PagedAdamW8bit" : "PagedAdamW32bit");
  words.in_trainer("optim=\"{}\"", codes ? "paged_adamw_8bit" : "paged_adamw_32bit");
  words.nowhere("DeepSpeed has no pages: it moves an optimizer's state to the host, or to a disk, as a whole");
}

inline const Lever& moments() {
  static const Lever lever{
      .name = "paged moments",
      .chapter = "13_optimizer_memory",
      .changes = Lever::Changes::state,
      .options = {kMoments},
      .words = {{"paged", [](const Levers& l) { return l.optimizer.paged_moments; }}},
      .read = [](const OptionValues& options,
                 Levers& levers) { levers.optimizer.paged_moments = options.find(kMoments) == "paged"; },
      .options_of =
          [](const Levers& levers) { return std::string(levers.optimizer.paged_moments ? "--moments paged" : ""); },
      .differs = [](const Levers& a,
                    const Levers& b) { return a.optimizer.paged_moments != b.optimizer.paged_moments; },
      .take = [](const Levers& target,
                 Levers& levers) { levers.optimizer.paged_moments = target.optimizer.paged_moments; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector<int>{0, 1},
                           [](Levers& levers, int on) { levers.optimizer.paged_moments = on == 1; });
          },
      .refuses = moments_refuses,
      .price = moments_price,
      .elsewhere = moments_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
