#pragma once
// Activation checkpointing (chapter 04): layers are recomputed from their input.

#include <charconv>

#include "plan/lever/lever.h"
#include "plan/schedule.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::string> kCheckpoint{
    "checkpoint", "none; N: recompute segments of N layers from their input; solved: what the budget allows"};

inline void read_checkpoint(const OptionValues& options, Levers& levers) {
  const auto word = options.find(kCheckpoint);
  if (!word || *word == "none") return;
  levers.solved = *word == "solved";
  if (levers.solved) return;
  const char* const end = word->data() + word->size();
  const auto [stop, error] = std::from_chars(word->data(), end, levers.recompute);
  if (error != std::errc() || stop != end || levers.recompute == 0)
    throw UsageError(fmt::format("--checkpoint '{}' is not allowed; write none, solved, or a number of layers", *word));
}

inline std::string checkpoint_options(const Levers& levers) {
  if (levers.solved) return "--checkpoint solved";
  return levers.recompute ? fmt::format("--checkpoint {}", levers.recompute) : "";
}

inline std::string checkpoint_refuses(const Work& work, const Levers& levers) {
  if (levers.recompute > work.spec.layers)
    return fmt::format("--checkpoint {}: model '{}' has {} layers", levers.recompute, work.spec.name, work.spec.layers);
  return "";
}

inline void checkpoint_elsewhere(const Work& work, const Levers& levers, Elsewhere& words) {
  if (levers.solved) {
    words.in_pytorch("x = checkpoint(layer, x, use_reentrant=False)  # every layer: the nearest");
    words.in_trainer("gradient_checkpointing=True");
    words.nowhere(
        "a schedule solved for the budget: the nearest is every layer, which computes more again and needs less or "
        "more memory");
    return;
  }
  if (levers.recompute == 0) return;
  if (levers.recompute == 1) {
    words.in_pytorch("x = checkpoint(layer, x, use_reentrant=False)  # torch.utils.checkpoint");
  } else {
    const std::uint64_t segments = (work.spec.layers + levers.recompute - 1) / levers.recompute;
    words.in_pytorch(
        "x = checkpoint_sequential(layers, {}, x, use_reentrant=False)  # the last segment is not recomputed",
        segments);
    words.nowhere("segments of {} layers: TrainingArguments checkpoint every layer", levers.recompute);
  }
  words.in_trainer("gradient_checkpointing=True");
}

inline const Lever& checkpoint() {
  static const Lever lever{
      .name = "checkpoint",
      .chapter = "04_checkpointing",
      .changes = Lever::Changes::activations,
      .options = {kCheckpoint},
      .words = {{"checkpoint", [](const Levers& l) { return l.recompute || l.solved; }}},
      .read = read_checkpoint,
      .options_of = checkpoint_options,
      .differs = [](const Levers& a, const Levers& b) { return a.recompute != b.recompute || a.solved != b.solved; },
      .take =
          [](const Levers& target, Levers& levers) {
            levers.recompute = target.recompute;
            levers.solved = target.solved;
          },
      .tries =
          [](const Reach& reach) {
            std::vector<Levers> all(1);
            for (std::uint64_t n = 1; n <= reach.work.spec.layers; ++n) all.emplace_back().recompute = n;
            all.emplace_back().solved = true;
            return all;
          },
      .refuses = checkpoint_refuses,
      .apply =
          [](const Work& work, const Levers& levers, const RankCoordinates& place, nn::StepLevers& step) {
            if (levers.recompute == 0) return;
            const nn::Slice slice = slice_of(work.spec, levers.ranks, place);
            step.schedule = nn::recompute_segments(slice.layers, levers.recompute);
          },
      .elsewhere = checkpoint_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
