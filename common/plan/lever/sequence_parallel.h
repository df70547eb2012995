#pragma once
// Sequence parallelism (Korthikanti et al., "Reducing activation recomputation", 2022): what tensor parallelism leaves
// whole on each of its ranks, norms and residuals, is shared out by rows. Rows are gathered before a product that is cut
// by columns, and what would be summed up for all rows behind the next one is summed up for each rank's own.

#include "plan/lever/lever.h"
#include "plan/plan.h"

namespace oomlab::plan::lever {

inline constexpr Option<bool> kSequenceParallel{"sequence-parallel",
                                                "The ranks of --tp share out the rows of norms and residuals, too"};

inline std::string sequence_parallel_refuses(const Work& work, const Levers& levers) {
  if (!levers.sequence_parallel) return "";
  const std::uint64_t parts = levers.ranks.tp;
  if (parts == 1) return "--sequence-parallel shares out rows among the ranks of --tp, and --tp is 1";
  if (levers.pack) return "";  // which knows its rows
  const std::uint64_t micro_batch = micro_batch_of(work, levers);
  const std::uint64_t seq = work.seq / levers.ranks.cp;
  if (checked_product(micro_batch, seq) % parts != 0)
    return fmt::format("--sequence-parallel gives each rank as many rows: --tp {} does not divide {} x {} tokens",
                       parts, micro_batch, seq);
  return "";
}

inline void sequence_parallel_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (!levers.sequence_parallel) return;
  words.in_pytorch(
      "parallelize_module(layer, mesh[\"tp\"], {{\"norm\": SequenceParallel(), \"attention\": "
      "PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()), \"projection\": "
      "RowwiseParallel(output_layouts=Shard(1)), …}})");
  words.nowhere(
      "rows of norms and residuals shared out among tensor-parallel ranks: TrainingArguments, TRL's configs and "
      "DeepSpeed's JSON have no setting (theirs by that name is Ulysses); Megatron-LM has --sequence-parallel, and "
      "torchtune does so with tensor_parallel_dim: {} and its base_llama_tp_plan",
      levers.ranks.tp);
}

inline const Lever& sequence_parallel() {
  static const Lever lever{
      .name = "sequence parallel",
      .chapter = "17_long_sequences",
      .changes = Lever::Changes::activations,
      .options = {kSequenceParallel},
      .words = {{kSequenceParallel.name, [](const Levers& l) { return l.sequence_parallel; }}},
      .saves_memory_alone = true,
      .read = [](const OptionValues& options,
                 Levers& levers) { levers.sequence_parallel = options[kSequenceParallel]; },
      .options_of =
          [](const Levers& levers) { return std::string(levers.sequence_parallel ? "--sequence-parallel" : ""); },
      .differs = [](const Levers& a, const Levers& b) { return a.sequence_parallel != b.sequence_parallel; },
      .take = [](const Levers& target, Levers& levers) { levers.sequence_parallel = target.sequence_parallel; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector<int>{0, 1}, [](Levers& levers, int on) { levers.sequence_parallel = on == 1; });
          },
      .refuses = sequence_parallel_refuses,
      .apply = [](const Work&, const Levers& levers, const RankCoordinates&,
                  nn::StepLevers& step) { step.sequence_parallel = levers.sequence_parallel; },
      .elsewhere = sequence_parallel_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
