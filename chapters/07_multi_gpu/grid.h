#pragma once
// Who does what: ranks in a grid of tensor, data and pipeline groups, the order of work in a pipeline, and what a rank
// needs and sends, in closed form.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "nn/transformer.h"
#include "plan/step_units.h"
#include "plan/step_walk.h"

namespace oomlab::multi_gpu {

/// How the work is split. Ranks are numbered as in Megatron-LM: those of a tensor group are neighbours, then those of a
/// data group, then the stages: rank = (stage · dp + replica) · tp + part.
struct Layout {
  std::size_t tp = 1, dp = 1, pp = 1;
  int zero = 0;                          ///< ZeRO stage of the dp groups (Rajbhandari et al., 2020)
  bool one_forward_one_backward = true;  ///< the pipeline's order; false: GPipe's, all forward passes first
  std::size_t ranks() const { return tp * dp * pp; }
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct RankCoordinates {
  std::size_t part, replica, stage;
};
inline RankCoordinates coordinates_of(const Layout& layout, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  return {r % layout.tp, r / layout.tp % layout.dp, r / layout.tp / layout.dp};
}

/// Layers as evenly as they go; the first stages have one more.
inline nn::Slice slice_of(const nn::TransformerSpec& spec, const Layout& layout, const RankCoordinates& place) {
  const std::size_t few = spec.layers / layout.pp, more = spec.layers % layout.pp;
  return {.first_layer = place.stage * few + std::min(place.stage, more),
          .layers = few + (place.stage < more),
          .part = place.part,
          .parts = layout.tp};
}

/// Stages that stand for all others in closed forms: the first one of each kind. Stages of a kind have as many layers,
/// the same of embeddings and head, and so the same state, operations and links; and the first has most in flight.
inline std::vector<std::size_t> kinds_of_stage(const nn::TransformerSpec& spec, const Layout& layout) {
  const std::size_t last = layout.pp - 1, with_one_more = spec.layers % layout.pp;
  std::vector<std::size_t> kinds{0};
  for (const std::size_t stage : {std::size_t(1), with_one_more, last})
    if (stage > kinds.back() && stage <= last) kinds.push_back(stage);
  return kinds;
}

/// One entry of a stage's work: the forward or the backward pass of a micro-batch.
struct Pass {
  bool forward;
  std::size_t micro_batch;
};
/// GPipe (Huang et al., 2019) runs all forward passes, then all backward passes, and holds all micro-batches. 1F1B
/// (Narayanan et al., "PipeDream", 2019) lets a stage run ahead by as many micro-batches as there are stages behind it:
/// stages − stage are in flight at most.
inline std::vector<Pass> passes_of(const Layout& layout, std::size_t stage, std::size_t micro_batches) {
  const std::size_t ahead =
      layout.one_forward_one_backward ? std::min(layout.pp - stage - 1, micro_batches) : micro_batches;
  std::vector<Pass> passes;
  std::size_t next = 0;
  for (; next < ahead; ++next) passes.push_back({true, next});
  for (std::size_t done = 0; done < micro_batches; ++done) {
    if (next < micro_batches) passes.push_back({true, next++});
    passes.push_back({false, done});
  }
  return passes;
}

/// Micro-batches that passes_of() has in flight at most.
inline std::size_t most_in_flight(const Layout& layout, std::size_t stage, std::size_t micro_batches) {
  return layout.one_forward_one_backward ? std::min(layout.pp - stage, micro_batches) : micro_batches;
}

/// The step of one rank, for nn::walk_step(): micro-batches of `micro_batch` sequences, `micro_batches` of them.
inline nn::StepLevers rank_levers(const nn::TransformerSpec& spec, const Layout& layout, const RankCoordinates& place,
                                  std::size_t element_bytes, std::size_t micro_batch, std::size_t micro_batches,
                                  std::size_t seq, const nn::StepForm& form) {
  return {.element_bytes = element_bytes,
          .sequences = micro_batch,
          .seq = seq,
          .form = form,
          .micro_batches = micro_batches,
          .in_flight = most_in_flight(layout, place.stage, micro_batches),
          .slice = slice_of(spec, layout, place),
          .replicas = layout.dp,
          .zero = layout.zero};
}
/// Peak allocated bytes of that rank.
inline ByCategory rank_bytes(const nn::TransformerSpec& spec, const nn::StepLevers& levers) {
  ByCategory resident = nn::unit_state_bytes(spec, levers);
  // The loss of all ranks that is shown, and where the head is, the loss.
  resident[Category::workspace] = (levers.slice.has_head(spec) ? 2 : 1) * round_to_granule(sizeof(float));
  return nn::walk_step(spec, levers, resident).at_peak;
}

/// Payload in bytes that a rank sends in a step, as Communicator::bytes_sent() counts it. E P: all units' bytes; m:
/// micro-batches; a ring of N sends (N − 1) / N of
///
///   replicas   DDP 2 E P   ZeRO-1 2 E P   ZeRO-2 (m + 1) E P   ZeRO-3 3 m E P, less m times the head's, which is used
///              once
///   parts      2 [rows, width] for each of a layer's 4 all-reduces, and for those of a layer that is computed again
///   both ends  2 [vocabulary, width] of two
/// and a stage sends [rows, width] to each neighbour.
inline std::uint64_t sent_by_rank(const nn::TransformerSpec& spec, const Layout& l, const RankCoordinates& place,
                                  const nn::StepLevers& levers) {
  const nn::Slice slice = slice_of(spec, l, place);
  const bool embeds = slice.embeds(), has_head = slice.has_head(spec);
  const auto ring = [](std::uint64_t bytes, std::size_t n) { return bytes / n * (n - 1); };
  const std::uint64_t m = levers.micro_batches, e = levers.element_bytes,
                      residual = levers.sequences * levers.seq * spec.width * e;
  std::uint64_t sent = 0;
  const nn::UnitElements units(spec, {.slice = slice, .replicas = l.dp});
  // ZeRO-3 gathers a unit for its forward and for its backward pass, but what is used in one of them only once.
  const auto reduce = [&](std::size_t elements, std::size_t count, bool used_once) {
    const std::uint64_t once = count * ring(elements * e, l.dp);
    sent += l.zero < 2 ? 2 * once : l.zero == 2 ? (m + 1) * once : (used_once ? 2 : 3) * m * once;
  };
  reduce(units.token, 1, !spec.tied);
  reduce(units.embedding, 1, false);
  reduce(units.layer, units.layers, false);
  reduce(units.head, 1, true);
  const nn::Keep& keep = levers.form.keep;  // a layer that is recomputed sums its parts once more, or twice
  const std::size_t again = keep.layer ? !keep.middle : spec.bert() ? 2 : 1;
  sent += m * slice.layers * (4 + again) * ring(2 * residual, l.tp);
  if (spec.tied && embeds != has_head) sent += ring(2 * spec.vocabulary * spec.width * e, 2);
  return sent + m * residual * (!embeds + !has_head);
}

}  // namespace oomlab::multi_gpu
