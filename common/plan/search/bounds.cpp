#include "plan/search/bounds.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "plan/flops.h"
#include "plan/host_state.h"
#include "plan/lever/list.h"
#include "plan/schedule.h"
#include "plan/step_buffers.h"
#include "plan/step_units.h"

namespace oomlab::plan {
namespace {

// Sums in another order than the plan's may round to a little more.
constexpr double kRoundedDown = 1 - 1e-12;
// Sequences whose buffers are all multiples of the granule: what they hold is not rounded.
constexpr std::uint64_t kUnrounded = kGranule;

// Numbers below 2^bits each, side by side.
class Key {
 public:
  Key& add(std::uint64_t value, int bits) {
    key_ = key_ << bits | value;
    return *this;
  }
  operator std::uint64_t() const { return key_; }

 private:
  std::uint64_t key_ = 0;
};
Key key_of_form(const Levers& levers, Checkpoints checkpoints, std::uint64_t micro) {
  return Key()
      .add(micro, 21)
      .add(levers.ranks.tp, 11)
      .add(std::uint64_t(levers.attention), 2)
      .add(std::uint64_t(levers.loss), 1)
      .add(levers.selective_recompute, 1)
      .add(levers.mlp_tiles > 1, 1)  // as many as are tried
      .add(levers.sequence_parallel, 1)
      .add(levers.precision == DType::fp32, 1)
      .add(std::uint64_t(checkpoints), 2);
}

std::uint64_t whole_bytes(double bytes) {
  if (bytes >= 0x1p63) throw std::length_error("a size does not fit 64 bits");
  return static_cast<std::uint64_t>(bytes);
}

nn::StepLevers step_of(const Levers& levers, const nn::StepForm& form, std::uint64_t micro, std::uint64_t seq) {
  return {.element_bytes = element_bytes(levers),
          .sequences = micro,
          .seq = seq,
          .form = form,
          .slice = {.parts = levers.ranks.tp},
          .sequence_parallel = levers.sequence_parallel,
          .context_ranks = levers.ranks.cp,
          .context = levers.ranks.context};
}

// Ways to treat a layer: those of chapter 04's solver, and, without checkpoints, the form's own.
std::vector<nn::Segment> choices_of(const nn::TransformerSpec& spec, const nn::StepForm& form,
                                    Checkpoints checkpoints) {
  if (checkpoints == Checkpoints::none) return {{1, false, form.keep}};
  if (checkpoints == Checkpoints::segments) return {{1, true, {}}};
  std::vector<nn::Segment> choices = nn::segment_choices(std::min(spec.layers, 2 * nn::root_of(spec.layers) + 2), form);
  choices.push_back({1, false, form.keep});
  return choices;
}

// Inputs of other layers that are there, at the least, when a layer of the last whole segment is at its backward pass:
// one for each segment before it, and one for each layer before it in its own.
std::uint64_t least_inputs_beside(std::uint64_t layers) {
  std::uint64_t least = layers - 1;
  for (std::uint64_t n = 1; n <= layers; ++n) least = std::min(least, layers / n - 1 + n - 1);
  return least;
}

}  // namespace

const Bounds::LayerBytes& Bounds::layer_bytes(const Levers& levers, Checkpoints checkpoints, std::uint64_t micro) {
  const std::uint64_t key = key_of_form(levers, checkpoints, micro);
  auto& known = of_layers(levers.ranks).bytes;
  if (const auto at = known.find(key); at != known.end()) return at->second;
  LayerBytes bytes;
  Levers of_one = levers;  // whether layers keep anything is the choice's
  of_one.ranks = {};
  const nn::StepForm form = form_of(task_.one, of_one);
  const std::uint64_t seq = own_seq(levers.ranks);
  const nn::StepLevers step = step_of(levers, form, micro, seq);
  bytes.head = nn::head_peak_bytes(spec_, step);
  bytes.forward = bytes.backward = bytes.held = UINT64_MAX;
  for (const nn::Segment& choice : choices_of(spec_, form, checkpoints)) {
    if (choice.layers > 1) continue;  // holds as much, and more
    const nn::SegmentBytes of = nn::segment_bytes(spec_, step, choice);
    bytes.forward = std::min(bytes.forward, of.forward_peak);
    bytes.backward = std::min(bytes.backward, of.backward_peak);
    bytes.held = std::min(bytes.held, of.held);
  }
  // The only buffer that larger micro-batches may not have: with fewer, larger tiles nothing is summed up.
  const std::uint64_t sums =
      levers.attention == nn::AttentionForm::tiled ? nn::StepBuffers(spec_, step).key_value_gradient_sums : 0;
  bytes.backward -= std::min(bytes.backward, sums);
  if (checkpoints != Checkpoints::solved) try {
      const nn::Segment choice = choices_of(spec_, form, checkpoints).front();
      bytes.raw = double(nn::segment_bytes(spec_, step_of(levers, form, kUnrounded, seq), choice).held) / kUnrounded;
    } catch (const std::length_error&) {
      bytes.raw = 0;  // so many sequences at once are beyond 64 bits
    }
  return known.emplace(key, bytes).first->second;
}

double Bounds::least_layer_flops(const Levers& levers, Checkpoints checkpoints, std::uint64_t share,
                                 std::span<const std::uint64_t> micros) {
  const auto [at, fresh] =
      of_layers(levers.ranks)
          .flops.try_emplace(key_of_form(levers, checkpoints, share).add(micros.size() > 1 ? 0 : micros.front(), 21));
  if (!fresh) return at->second;
  const nn::StepForm form = form_of(task_.one, levers);
  const nn::Segment segment{1, checkpoints == Checkpoints::segments, form.keep};
  double least = kNever;
  for (const std::uint64_t micro : micros) {
    const nn::LayerFlops of = nn::layer_flops_of_each(spec_, micro, seq_, form, levers.ranks.head_shares());
    double flops = double(of.forward + of.backward);
    if (checkpoints != Checkpoints::solved) flops += double(nn::recompute_flops(of, segment));
    least = std::min(least, double(share) * flops);
  }
  return at->second = least;
}

// Every layer has a few choices, each with bytes that it holds until its backward pass and operations that it computes
// again; all layers hold at most what is left beside the state and the head. Infinite where nothing can be held.
double Bounds::least_again(const Work& work, const Levers& levers, std::uint64_t state, std::uint64_t share,
                           std::span<const std::uint64_t> micros) {
  const std::uint64_t least_micro = micros.front(), layers = spec_.layers;
  const std::uint64_t fixed = state + nn::token_batch_bytes(least_micro, seq_) +
                              nn::embedding_bytes(spec_, element_bytes(levers), least_micro, seq_) +
                              layer_bytes(levers, Checkpoints::solved, least_micro).head;
  if (fixed >= work.room()) return kNever;
  const std::uint64_t key = key_of_form(levers, Checkpoints::solved, least_micro).add(micros.size() > 1, 1);
  auto& known = of_layers(levers.ranks).again;
  auto at = known.find(key);
  if (at == known.end()) {
    std::vector<std::pair<double, double>> each;
    const nn::StepForm form = form_of(task_.one, levers);
    const nn::StepLevers unrounded = step_of(levers, form, kUnrounded, seq_);
    for (const nn::Segment& s : choices_of(spec_, form, Checkpoints::solved)) {
      double cost = kNever;
      for (const std::uint64_t micro : micros) {
        const auto again = double(nn::recompute_flops(nn::layer_flops_of_each(spec_, micro, seq_, form), s));
        cost = std::min(cost, double(share) * again / double(s.layers));
      }
      const double held = double(nn::segment_bytes(spec_, unrounded, s).held) / kUnrounded * double(least_micro);
      each.emplace_back(held / double(s.layers), cost);
    }
    at = known.emplace(key, std::move(each)).first;
  }
  const double room = double(work.room() - fixed) / double(layers);
  double least = kNever;
  for (const auto& [held, cost] : at->second) {
    if (held > room) continue;
    least = std::min(least, cost);
    for (const auto& [more, less] : at->second)
      if (more > room && less < cost) least = std::min(least, cost + (less - cost) * (room - held) / (more - held));
  }
  return double(layers) * least;
}

const ByCategory& Bounds::state_of_one(const Work& work, const Levers& levers) {
  const Key key = Key()
                      .add(std::uint64_t(levers.precision), 2)
                      .add(std::uint64_t(levers.optimizer.rule), 2)
                      .add(std::uint64_t(levers.optimizer.weights), 2)
                      .add(levers.optimizer.wide_embeddings, 1)
                      .add(std::uint64_t(levers.gradients), 2)
                      .add(levers.streamed, 1);
  const auto [at, fresh] = states_.try_emplace(key);
  if (fresh) at->second = resident_bytes(work, levers);
  return at->second;
}

const std::vector<Bounds::StageState>& Bounds::states_of_stages(const Work& work, const Levers& levers) {
  Levers of_state = with_pass(levers, {});
  of_state.micro_batch = 0;
  if (!stages_.empty() && of_state == of_stages_) return stages_;
  std::vector<StageState> stages;
  for (const std::uint64_t stage : kinds_of_stage(spec_, levers.ranks)) {
    const nn::Slice slice = slice_of(spec_, levers.ranks, {0, 0, stage});
    const nn::StepLevers step{.element_bytes = element_bytes(levers),
                              .slice = slice,
                              .replicas = levers.ranks.replicas(),
                              .zero = levers.ranks.zero,
                              .gradients = levers.gradients,
                              .streamed = levers.streamed,
                              .optimizer = levers.optimizer};
    const bool several = levers.ranks.ranks() > 1;
    stages.push_back({stage, slice, several ? nn::unit_state_bytes(spec_, step) : state_of_one(work, levers),
                      round_to_granule(checked_product(nn::UnitElements(spec_, step).layer, step.element_bytes))});
  }
  of_stages_ = of_state;
  return stages_ = std::move(stages);
}

std::uint64_t Bounds::least_host_bytes(const Work& work, const Levers& levers) {
  Levers of_state = with_pass(levers, {});
  of_state.micro_batch = 0;
  if (on_host_ && of_state == of_host_) return *on_host_;
  std::uint64_t bytes = 0;
  for (const auto& [stage, ranks] : kinds_of_rank(spec_, of_state.ranks)) {
    const auto of_rank = nn::host_bytes(spec_, step_of(work, of_state, {.stage = stage}));
    bytes = checked_sum(bytes, checked_product(ranks, of_rank.total()));
  }
  of_host_ = of_state;
  on_host_ = bytes;
  return bytes;
}

double Bounds::seconds(const Work& work, const Levers& levers, const ByCategory& state, double flops) {
  Plan plan{.schedule = {}, .peak = state, .price = {.flops = flops * kRoundedDown}};
  Levers whole = levers;  // smaller micro-batches send gradients to the host more often, and add them up there
  whole.micro_batch = 0;
  whole.checkpoints_on_host = false;  // longer segments have next to no inputs that leave
  for (const Lever* lever : all_levers()) lever->price(work, whole, plan.price);
  // Nothing else of what is tried is certain to be there.
  if (plan.price.update.bytes > 0 && least_host_bytes(work, whole) > task_.host_bytes) return kNever;
  return least_seconds(*task_.card, levers, plan, task_.host_gb_per_s).value_or(kNever);
}

double Bounds::seconds_of_segments(const Work& work, const Levers& levers) {
  double flops = 0;
  for (const std::uint64_t stage : kinds_of_stage(spec_, levers.ranks)) {
    const RankCoordinates place{.stage = stage};
    flops = std::max(flops, rank_flops(work, levers, place, schedule_of(work, levers, place)));
  }
  const ByCategory none{};
  const bool several = levers.ranks.ranks() > 1;
  return seconds(work, levers, several ? none : state_of_one(work, levers), flops);
}

Bound Bounds::of(const Work& work, const Levers& levers, Checkpoints checkpoints,
                 std::span<const std::uint64_t> micros) {
  const std::uint64_t share = share_of(work, levers), micro = micros.front(), e = element_bytes(levers);
  const Layout& ranks = levers.ranks;
  const bool several = ranks.ranks() > 1;
  const LayerBytes layer = layer_bytes(levers, checkpoints, micro);
  const double layer_flops = least_layer_flops(levers, checkpoints, share, micros) / double(ranks.tp * ranks.cp);
  const double head_flops =
      double(share) / double(ranks.cp) * double(nn::step_flops_of_each(nn::with_layers(spec_, 0), 1, seq_));
  // Segments of several layers, and solved schedules, may hold next to nothing of a layer.
  const bool uniform =
      checkpoints == Checkpoints::none || (checkpoints == Checkpoints::segments && !tries_each_length(task_, levers));
  const bool inputs_leave = levers.checkpoints_on_host;  // then a layer holds nothing between its passes
  Bound bound;
  double flops = 0;
  std::optional<ByCategory> least_state;
  for (const auto& [stage, slice, state, of_layer] : states_of_stages(work, levers)) {
    std::uint64_t parameters = 0, gradients = 0;  // of a layer at work, where the state has only a share of them
    if (ranks.zero >= 2 || levers.gradients != nn::GradientLife::always) {
      gradients = of_layer;
      parameters = ranks.zero >= 3 || levers.streamed ? gradients : 0;
    }
    const std::uint64_t deep = slice.layers, waiting = std::min((ranks.pp - stage) * micro, share);
    const bool holds = uniform && !inputs_leave;
    const std::uint64_t before = holds ? checked_product(deep - 1, layer.held) : 0;
    std::uint64_t live = checked_sum(before, std::max(layer.forward, layer.backward + gradients) + parameters);
    if (holds) live = std::max(live, whole_bytes(double(waiting) * double(deep) * layer.raw * kRoundedDown));
    if (!uniform && checkpoints == Checkpoints::segments) {
      const std::uint64_t seq = own_seq(ranks);
      const std::uint64_t shares = step_of(levers, {}, micro, seq).row_shares();
      const std::uint64_t input = nn::residual_bytes(spec_, e, micro, seq, shares);
      const std::uint64_t beside = inputs_leave ? 0 : checked_product(least_inputs_beside(deep), input);
      live = std::max(live, checked_sum(beside, layer.backward + gradients + parameters));
    }
    if (slice.has_head(spec_)) live = std::max(live, checked_sum(before, layer.head));
    bound.bytes = std::max(bound.bytes, checked_sum(state.total(), live));
    flops = std::max(flops, double(deep) * layer_flops + (slice.has_head(spec_) ? head_flops : 0));
    if (!least_state) least_state = state;
    for (std::size_t c = 0; c < kCategoryCount; ++c)
      least_state->bytes[c] = std::min(least_state->bytes[c], state.bytes[c]);
  }
  if (checkpoints == Checkpoints::solved && !several)
    flops += least_again(work, levers, least_state->total(), share, micros);
  if (task_.card) bound.seconds = seconds(work, levers, *least_state, flops);
  return bound;
}

}  // namespace oomlab::plan
