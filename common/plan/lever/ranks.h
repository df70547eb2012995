#pragma once
// Several ranks (chapter 07): the samples, the inside of each layer, or the layers are shared out. What they do with the
// state that replicas have in common is lever/zero.h.

#include "plan/lever/lever.h"
#include "plan/limits.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::size_t> kTp{"tp", "Ranks that share each layer (tensor parallel)"};
inline constexpr Option<std::size_t> kPp{"pp", "Ranks that have different layers (pipeline parallel)"};
inline constexpr Option<std::size_t> kDp{"dp", "Ranks, or groups of them, that have different samples (data parallel)"};

/// "--tp 2 x --pp 1 x --dp 4".
inline std::string grid_words(const Layout& grid) {
  return fmt::format("--tp {} x --pp {} x --dp {}{}", grid.tp, grid.pp, grid.dp,
                     grid.cp > 1 ? fmt::format(" x --cp {}", grid.cp) : "");
}

/// Why a model and a batch cannot be shared out over this grid, in one line that begins with the option to change; empty
/// when they can.
inline std::string grid_refuses(const Work& work, const Levers& levers) {
  const nn::TransformerSpec& spec = work.spec;
  const Layout& grid = levers.ranks;
  for (const auto& [count, what] : {std::pair(spec.heads, "heads"), std::pair(spec.keys(), "heads of keys and values"),
                                    std::pair(spec.hidden(), "hidden units")})
    if (count % grid.tp != 0)
      return fmt::format("--tp {} does not divide the {} {} of model '{}'", grid.tp, count, what, spec.name);
  if (grid.pp > spec.layers)
    return fmt::format("--pp {} is more than the {} layers of model '{}'", grid.pp, spec.layers, spec.name);
  if (work.batch % grid.dp != 0) return fmt::format("--dp {} does not divide --batch {}", grid.dp, work.batch);
  // Of heads, layers and tokens there are not so many.
  if (grid.dp > kMostRanks || grid.tp * grid.pp * grid.cp > kMostRanks / grid.dp)
    return fmt::format("{} are too many ranks; up to {} are allowed", grid_words(grid), kMostRanks);
  return "";
}

/// Why a grid is not what --devices says; empty when it is.
inline std::string devices_refused(const Layout& grid, std::uint64_t devices) {
  if (grid.ranks() == devices) return "";
  return fmt::format("{} are {} ranks, and --devices says {}", grid_words(grid), grid.ranks(), devices);
}

inline bool same_grid(const Levers& a, const Levers& b) {
  return a.ranks.tp == b.ranks.tp && a.ranks.pp == b.ranks.pp && a.ranks.dp == b.ranks.dp;
}

inline std::string ranks_options(const Levers& levers) {
  std::string words;
  const auto add = [&](const Option<std::size_t>& option, std::uint64_t ranks) {
    if (ranks > 1) words += fmt::format("{}--{} {}", words.empty() ? "" : " ", option.name, ranks);
  };
  add(kTp, levers.ranks.tp);
  add(kPp, levers.ranks.pp);
  add(kDp, levers.ranks.dp);
  return words;
}

/// Every grid of up to reach.cards ranks that the model and the batch can be shared out over.
inline std::vector<Levers> grids(const Reach& reach) {
  const nn::TransformerSpec& spec = reach.work.spec;
  std::vector<Levers> all;
  for (std::uint64_t tp = 1; tp <= reach.cards; ++tp) {
    if (spec.heads % tp != 0 || spec.keys() % tp != 0 || spec.hidden() % tp != 0) continue;
    for (std::uint64_t dp = 1; tp * dp <= reach.cards && dp <= reach.work.batch; ++dp) {
      if (reach.work.batch % dp != 0) continue;
      for (std::uint64_t pp = 1; pp <= spec.layers && tp * dp * pp <= reach.cards; ++pp)
        all.emplace_back().ranks = {.tp = tp, .dp = dp, .pp = pp};
    }
  }
  return all;
}

inline void ranks_elsewhere(const Work& work, const Levers& levers, Elsewhere& words) {
  const Layout& grid = levers.ranks;
  if (grid.ranks() == 1) return;
  words.in_pytorch("torchrun --nproc-per-node {} …  # on each node as many as it has GPUs, {} in all", grid.ranks(),
                   grid.ranks());
  if (grid.tp > 1) {
    words.in_pytorch(
        "parallelize_module(layer, mesh[\"tp\"], {{\"query\": ColwiseParallel(), \"projection\": RowwiseParallel(), "
        "…}})  # {} parts",
        grid.tp);
    words.in_trainer(
        "(model) from_pretrained(…, distributed_config=DistributedConfig(tp_plan=\"auto\")), and torchrun");
    words.in_deepspeed("\"tensor_parallel\": {{\"autotp_size\": {}}}", grid.tp);
  }
  if (grid.pp > 1) {
    words.in_pytorch("schedule = {}(PipelineStage(…), n_microbatches={})  # torch.distributed.pipelining, {} stages",
                     grid.one_forward_one_backward ? "Schedule1F1B" : "ScheduleGPipe", micro_batches_of(work, levers),
                     grid.pp);
    words.nowhere(
        "{} stages of a pipeline: TrainingArguments have no setting; DeepSpeed has one in code, PipelineModule(layers, "
        "num_stages={})",
        grid.pp, grid.pp);
  }
}

inline const Lever& ranks() {
  static const Lever lever{
      .name = "several ranks",
      .chapter = "07_multi_gpu",
      .changes = Lever::Changes::state,
      .options = {kTp, kPp, kDp},
      .words = {{"tp", [](const Levers& l) { return l.ranks.tp > 1; }},
                {"pp", [](const Levers& l) { return l.ranks.pp > 1; }}},
      .read =
          [](const OptionValues& options, Levers& levers) {
            levers.ranks.tp = options.find(kTp).value_or(1);
            levers.ranks.pp = options.find(kPp).value_or(1);
            levers.ranks.dp = options.find(kDp).value_or(1);
          },
      .options_of = ranks_options,
      .differs = [](const Levers& a, const Levers& b) { return !same_grid(a, b); },
      .take =
          [](const Levers& target, Levers& levers) {
            const Layout before = levers.ranks;
            levers.ranks = target.ranks;
            levers.ranks.zero = target.ranks.dp * before.cp == 1 ? 0 : std::min(before.zero, target.ranks.zero);
            levers.ranks.cp = before.cp;  // lever/context.h
            levers.ranks.context = before.context;
          },
      .tries = grids,
      .cannot_share = grid_refuses,
      .numbers =
          [](const Work&, const Levers& levers) {
            return levers.ranks.ranks() == 1 ? Numbers{} : Numbers{Numbers::Change::rounding};
          },
      .apply =
          [](const Work& work, const Levers& levers, const RankCoordinates& place, nn::StepLevers& step) {
            step.slice = slice_of(work.spec, levers.ranks, place);
            step.in_flight = most_in_flight(levers.ranks, place.stage, micro_batches_of(work, levers));
            step.replicas = levers.ranks.dp;
          },
      .elsewhere = ranks_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
