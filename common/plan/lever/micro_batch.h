#pragma once
// Gradient accumulation (chapter 02): activations of some samples at a time.

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::size_t> kMicroBatch{"micro-batch", "Samples of one forward and backward pass"};

inline std::string micro_batch_refuses(const Work& work, const Levers& levers) {
  if (work.batch % levers.ranks.dp != 0) return "";  // which is refused elsewhere
  const std::uint64_t share = share_of(work, levers);
  if (levers.micro_batch == 0 || share % levers.micro_batch == 0) return "";
  if (levers.ranks.dp == 1)
    return fmt::format("--micro-batch {} does not divide --batch {}", levers.micro_batch, work.batch);
  return fmt::format("--micro-batch {} does not divide the {} samples of a rank (--batch {}, --dp {})",
                     levers.micro_batch, share, work.batch, levers.ranks.dp);
}

inline void micro_batch_elsewhere(const Work& work, const Levers& levers, Elsewhere& words) {
  const std::uint64_t micro = micro_batch_of(work, levers);
  const std::uint64_t count = micro_batches_of(work, levers);
  words.in_trainer("per_device_train_batch_size={}", micro);
  words.in_deepspeed("\"train_micro_batch_size_per_gpu\": {}", micro);
  if (count == 1) return;
  words.in_pytorch("for x, y in zip(xs.split({0}), ys.split({0})): (loss_sum(x, y) / targets_of_all).backward()",
                   micro);
  words.in_pytorch("optimizer.step()  # after {} micro-batches", count);
  words.in_trainer("gradient_accumulation_steps={}", count);
  words.in_deepspeed("\"gradient_accumulation_steps\": {}", count);
}

inline const Lever& micro_batch() {
  static const Lever lever{
      .name = "micro-batch",
      .chapter = "02_gradient_accumulation",
      .changes = Lever::Changes::micro_batch,
      .options = {kMicroBatch},
      .words = {{"micro-batch", [](const Levers& l) { return l.micro_batch != 0; }}},
      .read = [](const OptionValues& options,
                 Levers& levers) { levers.micro_batch = options.find(kMicroBatch).value_or(0); },
      .options_of =
          [](const Levers& levers) {
            return levers.micro_batch ? fmt::format("--micro-batch {}", levers.micro_batch) : "";
          },
      .differs = [](const Levers& a, const Levers& b) { return a.micro_batch != b.micro_batch; },
      .take = [](const Levers& target, Levers& levers) { levers.micro_batch = target.micro_batch; },
      .tries =
          [](const Reach& reach) {
            std::vector<Levers> all(1);
            for (std::uint64_t n = 1; n < reach.work.batch; ++n)
              if (reach.work.batch % n == 0) all.emplace_back().micro_batch = n;
            return all;
          },
      .cannot_share = micro_batch_refuses,
      .numbers =
          [](const Work& work, const Levers& levers) {
            return micro_batches_of(work, levers) == 1 ? Numbers{} : Numbers{Numbers::Change::rounding};
          },
      .apply =
          [](const Work& work, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
            step.sequences = micro_batch_of(work, levers);
            step.micro_batches = micro_batches_of(work, levers);
          },
      .elsewhere = micro_batch_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
