#include "plan/ranks.h"

#include <algorithm>

#include "plan/step_units.h"

namespace oomlab::plan {

RankCoordinates coordinates_of(const Layout& layout, int rank) {
  const auto r = static_cast<std::uint64_t>(rank);
  return {.part = r % layout.tp, .replica = r / layout.tp % layout.dp, .stage = r / layout.tp / layout.dp};
}

nn::Slice slice_of(const nn::TransformerSpec& spec, const Layout& layout, const RankCoordinates& place) {
  const std::uint64_t few = spec.layers / layout.pp;
  const std::uint64_t more = spec.layers % layout.pp;
  return {.first_layer = place.stage * few + std::min(place.stage, more),
          .layers = few + (place.stage < more),
          .part = place.part,
          .parts = layout.tp};
}

std::vector<std::uint64_t> kinds_of_stage(const nn::TransformerSpec& spec, const Layout& layout) {
  const std::uint64_t last = layout.pp - 1;
  const std::uint64_t with_one_more = spec.layers % layout.pp;
  std::vector<std::uint64_t> kinds{0};
  for (const std::uint64_t stage : {std::uint64_t(1), with_one_more, last})
    if (stage > kinds.back() && stage <= last) kinds.push_back(stage);
  return kinds;
}

std::uint64_t most_in_flight(const Layout& layout, std::uint64_t stage, std::uint64_t micro_batches) {
  return layout.one_forward_one_backward ? std::min(layout.pp - stage, micro_batches) : micro_batches;
}

nn::StepLevers rank_levers(const nn::TransformerSpec& spec, const Layout& layout, const RankCoordinates& place,
                           std::uint64_t element_bytes, std::uint64_t micro_batch, std::uint64_t micro_batches,
                           std::uint64_t seq, const nn::StepForm& form) {
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

ByCategory rank_bytes(const nn::TransformerSpec& spec, const nn::StepLevers& levers) {
  ByCategory resident = nn::unit_state_bytes(spec, levers);
  // The loss of all ranks that is shown, and where the head is, the loss.
  resident[Category::workspace] = (levers.slice.has_head(spec) ? 2 : 1) * round_to_granule(sizeof(float));
  return nn::simulate_step(spec, levers, resident).at_peak;
}

std::uint64_t sent_by_rank(const nn::TransformerSpec& spec, const Layout& layout, const RankCoordinates& place,
                           const nn::StepLevers& levers) {
  const nn::Slice slice = slice_of(spec, layout, place);
  const bool embeds = slice.embeds();
  const bool has_head = slice.has_head(spec);
  const auto ring = [](std::uint64_t bytes, std::uint64_t n) { return bytes / n * (n - 1); };
  const std::uint64_t m = levers.micro_batches;
  const std::uint64_t e = levers.element_bytes;
  const std::uint64_t residual = levers.sequences * levers.seq * spec.width * e;
  std::uint64_t sent = 0;
  const nn::UnitElements units(spec, {.slice = slice, .replicas = layout.dp});
  // ZeRO-3 gathers a unit for its forward and for its backward pass, but what is used in one of them only once.
  const auto reduce = [&](std::uint64_t elements, std::uint64_t count, bool used_once) {
    const std::uint64_t once = count * ring(elements * e, layout.dp);
    if (layout.zero < 2)
      sent += 2 * once;
    else if (layout.zero == 2)
      sent += (m + 1) * once;
    else
      sent += (used_once ? 2 : 3) * m * once;
  };
  reduce(units.token, 1, !spec.tied);
  reduce(units.embedding, 1, false);
  reduce(units.layer, units.layers, false);
  reduce(units.head, 1, true);
  const nn::Keep& keep = levers.form.keep;  // a layer that is recomputed sums its parts once more, or twice
  const std::uint64_t again = keep.layer ? !keep.post_attention_residual : spec.bert() ? 2 : 1;
  sent += m * slice.layers * (4 + again) * ring(2 * residual, layout.tp);
  if (spec.tied && embeds != has_head) sent += ring(2 * spec.vocabulary * spec.width * e, 2);
  return sent + m * residual * (!embeds + !has_head);
}

}  // namespace oomlab::plan
