#pragma once
// The MLP by tiles (Bekman et al., "Arctic Long Sequence Training", 2025): some rows after the other go through all of
// it, forward and again in the backward pass, so that what is between its two products never exists for all rows. Rows
// are as they were, to the bit where a product does not depend on how many it has; gradients of weights add up over the
// tiles, in the format that gradients have.

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::size_t> kTilesMlp{
    "tiles-mlp", "Pieces of the rows that go through the MLP one after the other, and again in the backward pass", 1,
    1 << 20};

/// What is tried with every other lever. More tiles save next to nothing: what attention has at its own moment is more than
/// what an eighth of the rows has in the MLP.
inline constexpr std::uint64_t kTriedTiles = 8;

inline void tiles_mlp_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (levers.mlp_tiles == 1) return;
  words.in_pytorch("y = torch.cat([checkpoint(mlp, rows, use_reentrant=False) for rows in x.chunk({}, dim=1)], dim=1)",
                   levers.mlp_tiles);
  words.nowhere(
      "the MLP by tiles: TrainingArguments, TRL's and torchtune's configs and DeepSpeed's JSON have no setting; Axolotl "
      "has tiled_mlp: true and tiled_mlp_num_shards: {0}. In code it is DeepSpeed's (ALST) "
      "TiledMLP.apply(forward, mlp, x, {0}, compute_params) or, where the MLP is a SwiGLU, Liger's "
      "LigerTiledSwiGLUMLP(config, num_shards={0}); both keep its input, and no norm is among the tiles",
      levers.mlp_tiles);
}

inline const Lever& tiles_mlp() {
  static const Lever lever{.name = "MLP by tiles",
                           .chapter = "17_long_sequences",
                           .changes = Lever::Changes::activations,
                           .options = {kTilesMlp},
                           .words = {{kTilesMlp.name, [](const Levers& l) { return l.mlp_tiles > 1; }}},
                           .saves_memory_alone = true,
                           .read = [](const OptionValues& options,
                                      Levers& levers) { levers.mlp_tiles = options.find(kTilesMlp).value_or(1); },
                           .options_of =
                               [](const Levers& levers) {
                                 return levers.mlp_tiles > 1 ? fmt::format("--{} {}", kTilesMlp.name, levers.mlp_tiles)
                                                             : "";
                               },
                           .differs = [](const Levers& a, const Levers& b) { return a.mlp_tiles != b.mlp_tiles; },
                           .take = [](const Levers& target, Levers& levers) { levers.mlp_tiles = target.mlp_tiles; },
                           .tries =
                               [](const Reach&) {
                                 return each_of(std::vector<std::uint64_t>{1, kTriedTiles},
                                                [](Levers& levers, std::uint64_t tiles) { levers.mlp_tiles = tiles; });
                               },
                           .numbers =
                               [](const Work&, const Levers& levers) {
                                 return levers.mlp_tiles > 1 ? Numbers{Numbers::Change::rounding} : Numbers{};
                               },
                           .apply = [](const Work&, const Levers& levers, const RankCoordinates&,
                                       nn::StepLevers& step) { step.form.mlp_tiles = levers.mlp_tiles; },
                           .elsewhere = tiles_mlp_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
