#include "plan/ranks.h"

#include <algorithm>

#include "plan/bytes.h"
#include "plan/step_units.h"

namespace oomlab::plan {

RankCoordinates coordinates_of(const Layout& layout, int rank) {
  const auto r = static_cast<std::uint64_t>(rank);
  const std::uint64_t replicas = layout.replicas();
  return {.part = r % layout.tp, .replica = r / layout.tp % replicas, .stage = r / layout.tp / replicas};
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

std::vector<KindOfRank> kinds_of_rank(const nn::TransformerSpec& spec, const Layout& layout) {
  const std::vector<std::uint64_t> stages = kinds_of_stage(spec, layout);
  std::vector<KindOfRank> kinds;
  for (std::size_t k = 0; k < stages.size(); ++k) {
    const std::uint64_t alike = (k + 1 < stages.size() ? stages[k + 1] : layout.pp) - stages[k];
    kinds.push_back({stages[k], checked_product(alike, checked_product(layout.tp, layout.replicas()))});
  }
  return kinds;
}

std::uint64_t most_in_flight(const Layout& layout, std::uint64_t stage, std::uint64_t micro_batches) {
  return layout.one_forward_one_backward ? std::min(layout.pp - stage, micro_batches) : micro_batches;
}

ByCategory resident_bytes(const nn::TransformerSpec& spec, const nn::StepLevers& levers, bool several) {
  ByCategory resident = nn::unit_state_bytes(spec, levers);
  const std::uint64_t loss = round_to_granule(sizeof(float));
  std::uint64_t& workspace = resident[Category::workspace];
  if (levers.slice.has_head(spec)) workspace = checked_sum(workspace, loss);
  if (several) workspace = checked_sum(workspace, loss);
  return resident;
}

ByCategory rank_bytes(const nn::TransformerSpec& spec, const nn::StepLevers& levers, bool several) {
  const PeakBytes step = nn::simulate_step(spec, levers, resident_bytes(spec, levers, several));
  return levers.frozen() ? later_peak(nn::making_base_peak(spec, levers), step).at_peak : step.at_peak;
}

namespace {

// Sums of a layer's parts beyond four, where it is treated so.
std::uint64_t sums_again(const nn::TransformerSpec& spec, const nn::Keep& saved) {
  if (saved.layer) return saved.post_attention_residual ? 0 : 1;
  return spec.bert() ? 2 : 1;  // without what its backward pass does not read
}

}  // namespace

std::uint64_t sums_among_parts(const nn::TransformerSpec& spec, const nn::StepLevers& levers) {
  nn::Schedule schedule = levers.schedule;
  const std::uint64_t layers = levers.slice.end(spec) - levers.slice.first_layer;
  if (schedule.empty()) schedule = {{layers, false, levers.form.keep}};
  std::uint64_t sums = 4 * layers;
  for (const nn::Segment& segment : schedule) {
    if (segment.recompute) {  // whole layers again, and of the last one what its backward pass reads
      sums += (segment.layers - 1) * (2 + sums_again(spec, levers.form.keep));
      sums += sums_again(spec, {.layer = false});
    } else {
      sums += segment.layers * sums_again(spec, segment.keep);
    }
  }
  return sums;
}

namespace {

// How often a pass forward and back gathers all rows of a residual from the parts, or sums them up so that each part gets
// its own, where they share rows out.
std::uint64_t rows_gathered_or_summed(const nn::TransformerSpec& spec, const nn::StepLevers& levers) {
  const bool all = !levers.frozen();
  const bool tiles = levers.form.tiles_mlp();
  std::uint64_t adapted_qkv = 0;
  std::uint64_t adapted_up = 0;
  if (!all) {
    for (const nn::AdapterSlot& slot : nn::adapter_slots(spec, levers.adapters.targets)) {
      adapted_qkv += slot.matrix == nn::LayerMatrix::qkv;
      adapted_up += slot.matrix == nn::LayerMatrix::up;
    }
  }
  const std::uint64_t forward = 4;  // before and behind attention, before and behind the MLP
  const std::uint64_t backward = 4 + (all || adapted_qkv > 0) + (all || tiles || adapted_up > 0);
  // Of a layer of which only the input was kept, what its backward pass reads; of one that was kept, its middle.
  const std::uint64_t rebuilt = spec.bert() ? 4 : tiles ? 2 : 3;
  const auto again = [&](const nn::Keep& saved) -> std::uint64_t {
    if (!saved.layer) return rebuilt;
    return saved.post_attention_residual ? 0 : 1;
  };
  const std::uint64_t layers = levers.slice.end(spec) - levers.slice.first_layer;
  nn::Schedule schedule = levers.schedule;
  if (schedule.empty()) schedule = {{layers, false, levers.form.keep}};
  std::uint64_t times = layers * (forward + backward);
  for (const nn::Segment& segment : schedule)
    times += segment.recompute ? (segment.layers - 1) * (forward + again(levers.form.keep)) + rebuilt
                               : segment.layers * again(segment.keep);
  return times + levers.slice.has_head(spec) + (levers.slice.embeds() && all);
}

// What all parts send each other for the rows of all micro-batches.
std::uint64_t sent_among_parts(const nn::TransformerSpec& spec, const nn::StepLevers& levers) {
  const std::uint64_t residual = levers.rows_of_step() * spec.width * levers.element_bytes;
  const std::uint64_t parts = levers.slice.parts;
  if (levers.row_shares() > 1) return rows_gathered_or_summed(spec, levers) * (residual / parts * (parts - 1));
  return sums_among_parts(spec, levers) * (2 * residual / parts * (parts - 1));
}

// How often a step passes through attention forward for one sequence's layers.
std::uint64_t attention_forward_passes(const nn::TransformerSpec& spec, const nn::StepLevers& levers) {
  const std::uint64_t layers = levers.slice.end(spec) - levers.slice.first_layer;
  const auto again = [](const nn::Keep& saved) -> std::uint64_t { return saved.layer ? 0 : 1; };
  std::uint64_t passes = layers;
  nn::Schedule schedule = levers.schedule;
  if (schedule.empty()) schedule = {{layers, false, levers.form.keep}};
  for (const nn::Segment& segment : schedule)
    passes += segment.recompute ? (segment.layers - 1) * (1 + again(levers.form.keep)) + 1
                                : segment.layers * again(segment.keep);
  return passes;
}

// What ranks that share out the tokens of every sequence send each other for a micro-batch.
std::uint64_t sent_for_attention(const nn::TransformerSpec& spec, const nn::StepLevers& levers) {
  const std::uint64_t ranks = levers.context_ranks;
  if (ranks == 1) return 0;
  const std::uint64_t rows = levers.sequences * levers.seq;
  const std::uint64_t parts = levers.slice.parts;
  const std::uint64_t layers = levers.slice.end(spec) - levers.slice.first_layer;
  const std::uint64_t forward_passes = attention_forward_passes(spec, levers);
  const std::uint64_t keys_and_values = rows * 2 * spec.keys() / parts * spec.depth();
  if (levers.context == nn::ContextForm::ring) {
    const std::uint64_t block = keys_and_values * levers.element_bytes;
    const std::uint64_t gradients = keys_and_values * sizeof(float);
    return forward_passes * (ranks - 1) * block + layers * ((ranks - 1) * block + ranks * gradients);
  }
  const std::uint64_t attended = rows * (spec.width / parts) * levers.element_bytes / ranks;
  const std::uint64_t qkv = attended + keys_and_values * levers.element_bytes / ranks;
  const std::uint64_t backward = qkv + (levers.form.attention == nn::AttentionForm::fused ? 2 : 1) * attended;
  return (ranks - 1) * (forward_passes * (qkv + attended) + layers * backward);
}

}  // namespace

std::uint64_t sent_by_rank(const nn::TransformerSpec& spec, const Layout& layout, const RankCoordinates& place,
                           const nn::StepLevers& levers) {
  const nn::Slice slice = slice_of(spec, layout, place);
  const bool embeds = slice.embeds();
  const bool has_head = slice.has_head(spec);
  const auto ring = [](std::uint64_t bytes, std::uint64_t n) { return bytes / n * (n - 1); };
  const std::uint64_t m = levers.micro_batches;
  const std::uint64_t e = levers.element_bytes;
  const std::uint64_t residuals = levers.rows_of_step() * spec.width * e / levers.row_shares();
  const bool leave = levers.optimizer_on_host();
  // Gradients of a micro-batch are added up over ranks before the next one's are there.
  const bool apart = (layout.dp > 1 && layout.zero >= 2) || levers.gradients != nn::GradientLife::always;
  std::uint64_t sent = 0;
  const nn::UnitElements units(spec, levers);
  // ZeRO-3 gathers a unit for its forward and for its backward pass, but what is used in one of them only once.
  const auto gather = [&](std::uint64_t elements, std::uint64_t count, bool used_once) {
    if (layout.zero == 3) sent += (used_once ? 1 : 2) * m * count * ring(elements * e, layout.replicas());
  };
  const auto reduce = [&](std::uint64_t elements, std::uint64_t count, bool used_once) {
    const std::uint64_t once = count * ring(elements * e, layout.replicas());
    switch (layout.zero) {
      case 0: sent += 2 * (leave ? m : 1) * once; break;
      case 1: sent += ((leave ? m : 1) + 1) * once; break;
      case 2: sent += (m + 1) * once; break;
      default: sent += (used_once ? 2 : 3) * m * once; break;
    }
  };
  if (levers.frozen()) {
    gather(units.token, 1, !spec.tied || levers.shares_token(spec));
    gather(units.embedding, 1, true);
    gather(units.layer, units.layers, false);
    gather(units.head, 1, true);
    reduce(units.adapters, units.layers, false);
    // Each part has a share of the gradients of tensors that all parts have.
    const std::uint64_t sums = apart ? m : 1;
    sent += sums * units.layers * ring(2 * units.adapters_whole * e, layout.tp);
    return sent + sent_among_parts(spec, levers) + m * sent_for_attention(spec, levers) +
           residuals * (!embeds + !has_head);
  }
  if (levers.shares_token(spec) && levers.gradients != nn::GradientLife::always)  // added up once, at the end
    sent += (layout.zero >= 3 ? m + 1 : 2) * ring(units.token * e, layout.replicas());
  else
    reduce(units.token, 1, !spec.tied || levers.shares_token(spec));
  reduce(units.embedding, 1, false);
  reduce(units.layer, units.layers, false);
  reduce(units.head, 1, true);
  sent += sent_among_parts(spec, levers) + m * sent_for_attention(spec, levers);
  if (levers.row_shares() > 1) {  // of norms, each part has the gradients of its rows
    const std::uint64_t sums = apart ? m : 1;
    sent += sums * (units.layers * ring(2 * units.norms * e, layout.tp) +
                    (embeds && spec.bert() ? ring(2 * units.embedding_norm * e, layout.tp) : 0));
  }
  if (levers.shares_token(spec)) {
    const std::uint64_t elements =
        layout.zero >= 1 ? units.token / layout.replicas() : checked_product(spec.vocabulary, spec.width);
    sent += ring(2 * elements * e, 2);
  }
  return sent + residuals * (!embeds + !has_head);
}

}  // namespace oomlab::plan
