#pragma once
// Who does what: ranks in a grid of tensor, data and pipeline groups, and what a rank needs and sends, in closed form.

#include <cstdint>
#include <vector>

#include "plan/step.h"

namespace oomlab::plan {

/// How the work is split. Ranks are numbered as in Megatron-LM: those of a tensor group are neighbours, then those that
/// share out sequences, then those of a data group, then the stages: rank = (stage · dp · cp + replica) · tp + part.
struct Layout {
  std::uint64_t tp = 1;                  ///< tensor parallel: parts of each layer
  std::uint64_t dp = 1;                  ///< data parallel: replicas, each with other samples
  std::uint64_t pp = 1;                  ///< pipeline parallel: stages of consecutive layers
  int zero = 0;                          ///< ZeRO stage of the dp groups (Rajbhandari et al., 2020)
  bool one_forward_one_backward = true;  ///< the pipeline's order; false: GPipe's, all forward passes first
  std::uint64_t cp = 1;                  ///< context parallel: ranks that share out the tokens of every sequence
  nn::ContextForm context = nn::ContextForm::ring;  ///< how these go about attention
  std::uint64_t ranks() const { return tp * cp * dp * pp; }
  /// Ranks that have the same slice of the model: other samples, or other tokens of the same ones. Gradients are summed up
  /// over them, and ZeRO shares out among them.
  std::uint64_t replicas() const { return dp * cp; }
  bool ring() const { return cp > 1 && context == nn::ContextForm::ring; }
  bool ulysses() const { return cp > 1 && context == nn::ContextForm::ulysses; }
  /// Ranks that share out the heads of attention.
  std::uint64_t head_shares() const { return tp * (ulysses() ? cp : 1); }
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// A rank's place in the grid, each from 0: part of a layer (tp), replica (dp · cp), stage of the pipeline (pp).
struct RankCoordinates {
  std::uint64_t part = 0, replica = 0, stage = 0;
  /// Which share of the samples it has (dp), and which of each one's tokens (cp).
  std::uint64_t share_of_samples(const Layout& layout) const { return replica / layout.cp; }
  std::uint64_t share_of_tokens(const Layout& layout) const { return replica % layout.cp; }
};
/// Of rank 0 … ranks() − 1: parts lie side by side, then replicas, then stages.
RankCoordinates coordinates_of(const Layout& layout, int rank);

/// Layers as evenly as they go; the first stages have one more.
nn::Slice slice_of(const nn::TransformerSpec& spec, const Layout& layout, const RankCoordinates& place);

/// Stages that stand for all others in closed forms: the first one of each kind. Stages of a kind have as many layers,
/// the same of embeddings and head, and so the same state, operations and links; and the first has most in flight.
std::vector<std::uint64_t> kinds_of_stage(const nn::TransformerSpec& spec, const Layout& layout);
/// Each of these stages, and how many ranks are on stages of its kind.
struct KindOfRank {
  std::uint64_t stage, ranks;
};
std::vector<KindOfRank> kinds_of_rank(const nn::TransformerSpec& spec, const Layout& layout);

/// Micro-batches that a stage has in flight at most, of so many of a step. GPipe (Huang et al., 2019) holds all of them.
/// 1F1B (Narayanan et al., "PipeDream", 2019) lets a stage run ahead by as many as there are stages behind it.
std::uint64_t most_in_flight(const Layout& layout, std::uint64_t stage, std::uint64_t micro_batches);

/// What stays on the device of a rank from step to step: nn::unit_state_bytes(), the loss where the head is, and with
/// `several` ranks the loss of all of them, which each shows.
ByCategory resident_bytes(const nn::TransformerSpec& spec, const nn::StepLevers& levers, bool several);
/// Peak allocated bytes of that rank.
ByCategory rank_bytes(const nn::TransformerSpec& spec, const nn::StepLevers& levers, bool several);

/// How often a step sums the residual among a rank's parts for one sequence's layers: four times for each layer, and
/// again for what is recomputed.
std::uint64_t sums_among_parts(const nn::TransformerSpec& spec, const nn::StepLevers& levers);

/// Payload in bytes that a rank sends in a step, as Communicator::bytes_sent() counts it. E P: all units' bytes; m:
/// micro-batches; a ring of N sends (N − 1) / N of
///
///   replicas   DDP 2 E P   ZeRO-1 2 E P   ZeRO-2 (m + 1) E P   ZeRO-3 3 m E P, less m times that of units that a pass
///              uses once. Gradients that leave for the host do so in each micro-batch: DDP 2 m E P, ZeRO-1 as ZeRO-2
///   parts      2 [rows, width] for each of a layer's 4 all-reduces, and for those of a layer that is computed again;
///              where they share rows out, [rows, width] for each of 4 gathers or sums forward and 6 back
///   tokens     with a ring N − 1 blocks of K and V in each forward and backward pass through attention, and N of their
///              gradients in FP32; with Ulysses (N − 1) / N of Q, K, V and of what is attended, and of their gradients
///   both ends  2 [vocabulary, width] of two, or of a shard of it
/// and a stage sends [rows, width] to each neighbour.
std::uint64_t sent_by_rank(const nn::TransformerSpec& spec, const Layout& layout, const RankCoordinates& place,
                           const nn::StepLevers& levers);

}  // namespace oomlab::plan
