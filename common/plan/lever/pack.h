#pragma once
// Packing (Krell et al., "Efficient sequence packing without cross-contamination", 2021; Dao, "FlashAttention-2", 2023):
// sequences of unequal lengths lie side by side in one row of tokens, where they would otherwise be padded to the longest.
// Attention stays within each by its offsets, and positions begin again with each. A micro-batch has as many rows as its
// sequences have tokens.

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr Option<bool> kPack{
    "pack", "Sequences of a micro-batch side by side in one row of tokens, in place of padding them to the longest"};

inline std::string pack_refuses(const Work& work, const Levers& levers) {
  for (const std::uint64_t length : work.lengths)
    if (length == 0 || length > work.seq)
      return fmt::format("--lengths: a sequence has 1 to {} tokens (--seq), not {}", work.seq, length);
  if (!work.lengths.empty() && work.spec.bert() && !levers.pack)
    return "--lengths without --pack pads, and in bert every token would attend to the padding; give --pack";
  if (!levers.pack) return "";
  if (levers.ranks.pp > 1)
    return "--pack makes micro-batches of unequal sizes, and stages of --pp send each other equal ones";
  if (levers.ranks.cp > 1)
    return "--pack has several sequences side by side, and --cp shares out the tokens of one; leave one of the two out";
  if (levers.solved) return "--checkpoint solved is for sequences of one length; with --pack give a number of layers";
  // Of each sequence, as Megatron-LM asks for it: then of any micro-batch.
  for (const std::uint64_t tokens : work.lengths_in_turn().turn)
    if (levers.sequence_parallel && tokens % levers.ranks.tp != 0)
      return fmt::format("--sequence-parallel gives each rank as many rows: --tp {} does not divide {} packed tokens",
                         levers.ranks.tp, tokens);
  return "";
}

inline void pack_elsewhere(const Work& work, const Levers& levers, Elsewhere& words) {
  if (!levers.pack) return;
  words.in_pytorch("offsets = F.pad(lengths.cumsum(0), (1, 0)).int()  # q, k and v: [tokens, heads, depth]");
  words.in_pytorch("y = varlen_attn(q, k, v, offsets, offsets, longest, longest{})  # torch.nn.attention.varlen",
                   work.spec.bert() ? "" : ", window_size=(-1, 0)");
  words.in_trainer("data_collator=DataCollatorWithFlattening(); (model) attn_implementation=\"flash_attention_2\"");
  words.in_trainer("(SFTTrainer) padding_free=True");
}

inline const Lever& pack() {
  static const Lever lever{
      .name = "packing",
      .chapter = "17_long_sequences",
      .changes = Lever::Changes::micro_batch,
      .options = {kPack},
      .words = {{kPack.name, [](const Levers& l) { return l.pack; }}},
      .read = [](const OptionValues& options, Levers& levers) { levers.pack = options[kPack]; },
      .options_of = [](const Levers& levers) { return std::string(levers.pack ? "--pack" : ""); },
      .differs = [](const Levers& a, const Levers& b) { return a.pack != b.pack; },
      .take = [](const Levers& target, Levers& levers) { levers.pack = target.pack; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector<int>{0, 1}, [](Levers& levers, int on) { levers.pack = on == 1; });
          },
      .refuses = pack_refuses,
      .numbers = [](const Work&,
                    const Levers& levers) { return levers.pack ? Numbers{Numbers::Change::rounding} : Numbers{}; },
      .apply =
          [](const Work& work, const Levers& levers, const RankCoordinates& place, nn::StepLevers& step) {
            if (levers.pack) step.lengths = lengths_of_rank(work, levers, place.replica);
          },
      .elsewhere = pack_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
