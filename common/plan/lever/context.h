#pragma once
// Context parallelism: ranks share out the tokens of every sequence. All is done row by row on a rank's own tokens but
// attention, which meets keys of others: they go round (Liu et al., "Ring attention with blockwise transformers", 2023), or
// ranks exchange rows for heads (Jacobs et al., "DeepSpeed Ulysses", 2023).

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::size_t> kCp{"cp", "Ranks that share out the tokens of every sequence (context parallel)"};
inline constexpr Option<std::string> kContextForm{"context", "How these go about attention: ring or ulysses",
                                                  "ring ulysses"};

/// Why the tokens or the heads cannot be shared out, in one line; empty when they can.
inline std::string context_cannot_share(const Work& work, const Levers& levers) {
  const std::uint64_t ranks = levers.ranks.cp;
  if (ranks == 1) return "";
  if (work.seq % ranks != 0) return fmt::format("--cp {} does not divide the {} tokens of a sequence", ranks, work.seq);
  if (levers.ranks.context == nn::ContextForm::ring) {
    if (!work.spec.bert() && work.seq % (2 * ranks) != 0)
      return fmt::format(
          "--context ring gives each rank two chunks of a sequence, so that each has as many scores: {} "
          "chunks do not divide its {} tokens",
          2 * ranks, work.seq);
    return "";
  }
  const std::uint64_t parts = levers.ranks.tp;
  for (const auto& [count, what] :
       {std::pair(work.spec.heads, "heads"), std::pair(work.spec.keys(), "heads of keys and values")})
    if (count % (parts * ranks) != 0)
      return fmt::format(
          "--context ulysses gives each rank heads of its own: {} does not divide the {} {} of model '{}'",
          parts > 1 ? fmt::format("--tp {} x --cp {}", parts, ranks) : fmt::format("--cp {}", ranks), count, what,
          work.spec.name);
  return "";
}

inline std::string context_refuses(const Work&, const Levers& levers) {
  const bool ring = levers.ranks.context == nn::ContextForm::ring;
  if (levers.ranks.cp == 1)
    return ring ? "" : "--context ulysses is how the ranks of --cp go about attention, and --cp is 1";
  if (ring && levers.attention != nn::AttentionForm::fused)
    return fmt::format(
        "--context ring meets the keys block by block, and only --attention fused merges blocks; {} needs the scores "
        "of "
        "all keys at once: take --attention fused, or --context ulysses",
        name_of(levers.attention));
  return "";
}

inline std::string context_options(const Levers& levers) {
  const Layout& grid = levers.ranks;
  if (grid.cp == 1) return "";
  return fmt::format("--cp {}{}", grid.cp, grid.context == nn::ContextForm::ring ? "" : " --context ulysses");
}

inline void context_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  const Layout& grid = levers.ranks;
  if (grid.cp == 1) return;
  if (grid.context == nn::ContextForm::ring) {
    words.in_pytorch(
        "set_rotate_method(\"alltoall\")  # torch.distributed.tensor.experimental._attention; by default every rank "
        "gathers all keys and values");
    words.in_pytorch(
        "with context_parallel(mesh[\"cp\"], buffers=(x, y, positions), buffer_seq_dims=(1, 1, 1)): loss(model(x, "
        "position_ids=positions), y).backward()  # {} ranks; y shifted beforehand; causal SDPA without a padding mask",
        grid.cp);
    words.in_trainer(
        "parallelism_config=ParallelismConfig(cp_size={}, cp_handler=TorchContextParallelConfig(cp_comm_strategy="
        "\"alltoall\"))  # accelerate's; only with FSDP2",
        grid.cp);
    words.nowhere(
        "keys and values that go round among {} ranks: DeepSpeed's JSON has no setting; Megatron-LM has "
        "--context-parallel-size {}",
        grid.cp, grid.cp);
  } else {
    words.in_deepspeed("\"sequence_parallel_size\": {}, \"data_parallel_size\": {}", grid.cp, grid.dp);
    words.nowhere(
        "rows exchanged for heads among {0} ranks: PyTorch has no context manager for it; with DeepSpeed's JSON "
        "attention "
        "must be wrapped, too: UlyssesSPAttentionHF.register_with_transformers(...), or accelerate's "
        "ParallelismConfig(sp_backend=\"deepspeed\", sp_size={0}, ...); Megatron-LM has --context-parallel-size {0} "
        "--cp-comm-type a2a",
        grid.cp);
  }
}

inline const Lever& context() {
  static const Lever lever{
      .name = "context parallel",
      .chapter = "17_long_sequences",
      .changes = Lever::Changes::state,
      .options = {kCp, kContextForm},
      .words = {{kCp.name, [](const Levers& l) { return l.ranks.cp > 1; }}},
      .read =
          [](const OptionValues& options, Levers& levers) {
            levers.ranks.cp = options.find(kCp).value_or(1);
            if (const auto name = options.find(kContextForm)) levers.ranks.context = nn::parse_context(*name);
          },
      .options_of = context_options,
      .differs = [](const Levers& a,
                    const Levers& b) { return a.ranks.cp != b.ranks.cp || a.ranks.context != b.ranks.context; },
      .take =
          [](const Levers& target, Levers& levers) {
            levers.ranks.cp = target.ranks.cp;
            levers.ranks.context = target.ranks.context;
          },
      .tries =
          [](const Reach& reach) {
            std::vector<Levers> all(1);
            for (const nn::ContextForm form : {nn::ContextForm::ring, nn::ContextForm::ulysses})
              for (std::uint64_t ranks = 2; ranks <= reach.cards; ranks *= 2) {
                Levers levers;
                levers.ranks.cp = ranks;
                levers.ranks.context = form;
                if (context_cannot_share(reach.work, levers).empty()) all.push_back(levers);
              }
            return all;
          },
      .cannot_share = context_cannot_share,
      .refuses = context_refuses,
      .numbers =
          [](const Work&, const Levers& levers) {
            return levers.ranks.cp == 1 ? Numbers{} : Numbers{Numbers::Change::rounding};
          },
      .apply =
          [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
            step.seq /= levers.ranks.cp;
            step.replicas *= levers.ranks.cp;
            step.context_ranks = levers.ranks.cp;
            step.context = levers.ranks.context;
          },
      .elsewhere = context_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
