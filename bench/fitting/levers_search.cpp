#include "levers_search.h"

#include <algorithm>
#include <tuple>

namespace oomlab::fit {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::vector<std::size_t> divisors(std::size_t n) {
  std::vector<std::size_t> all;
  for (std::size_t d = 1; d * d <= n; ++d)
    if (n % d == 0) {
      all.push_back(d);
      if (d * d != n) all.push_back(n / d);
    }
  std::ranges::sort(all);
  return all;
}

bool splits(const nn::TransformerSpec& spec, std::size_t tp) {
  return spec.heads % tp == 0 && spec.keys() % tp == 0 && spec.hidden() % tp == 0;
}

}  // namespace

Levers step_as_it_is(const Question& question) {
  Levers levers;
  levers.precision = question.precision.value_or(Arithmetic::fp32);
  levers.optimizer.weights = capstone::usual_weights(levers.precision);
  for (std::size_t dp = 1; dp <= question.gpus; ++dp)
    if (question.batch % dp == 0) levers.ranks.dp = dp;
  return levers;
}

bool allowed(const Question& question, const Levers& levers) {
  const auto& optimizer = levers.optimizer;
  if (question.precision && levers.precision != *question.precision) return false;
  const bool full = levers.precision == Arithmetic::fp32;
  if (question.numbers == Numbers::same && !(full && optimizer.rule == UpdateRule::adamw)) return false;
  if (question.numbers == Numbers::adamw) {
    if (optimizer.rule != UpdateRule::adamw && optimizer.rule != UpdateRule::adamw8) return false;
    if (!full && optimizer.weights == WeightForm::stored) return false;
  }
  const auto out = [&](const char* lever, bool used) { return used && question.without.contains(lever); };
  return !(out("micro-batch", levers.micro_batch != 0) ||
           out("attention", levers.attention != AttentionForm::textbook) ||
           out("precision", !full && !question.precision) || out("loss", levers.loss != LossForm::full) ||
           out("lean", levers.lean) || out("checkpoint", levers.recompute || levers.solved) ||
           out("adamw8", optimizer.rule == UpdateRule::adamw8) || out("wide", optimizer.wide_embeddings) ||
           out("stochastic", optimizer.weights == WeightForm::stochastic) ||
           out("in-backward", levers.gradients == GradientLife::used_at_once) ||
           out("offload", levers.gradients == GradientLife::sent_to_host) || out("tp", levers.ranks.tp > 1) ||
           out("pp", levers.ranks.pp > 1) || out("zero", levers.ranks.zero > 0));
}

std::size_t changes_between(const Levers& a, const Levers& b) {
  const bool weights = b.precision == a.precision ? a.optimizer.weights != b.optimizer.weights
                                                  : b.optimizer.weights != capstone::usual_weights(b.precision);
  return std::size_t(a.precision != b.precision) + std::size_t(a.micro_batch != b.micro_batch) +
         std::size_t(a.attention != b.attention) + std::size_t(a.loss != b.loss) + std::size_t(a.lean != b.lean) +
         std::size_t(a.recompute != b.recompute || a.solved != b.solved) +
         std::size_t(a.optimizer.rule != b.optimizer.rule) + std::size_t(weights) +
         std::size_t(a.optimizer.wide_embeddings != b.optimizer.wide_embeddings) +
         std::size_t(a.gradients != b.gradients) +
         std::size_t(std::tuple(a.ranks.tp, a.ranks.dp, a.ranks.pp) != std::tuple(b.ranks.tp, b.ranks.dp, b.ranks.pp)) +
         std::size_t(a.ranks.zero != b.ranks.zero);
}

LeversSearch::LeversSearch(const Question& question, const Work& work)
    : question_(question), work_(work), base_(step_as_it_is(question)) {
  const std::vector<capstone::Layout> grids = layouts();
  for (const Arithmetic precision : {Arithmetic::fp32, Arithmetic::fp16, Arithmetic::bf16})
    for (const UpdateRule rule : {UpdateRule::adamw, UpdateRule::adamw8, UpdateRule::adafactor, UpdateRule::sgd})
      for (const bool wide : {false, true})
        for (const WeightForm weights : {WeightForm::stored, WeightForm::master, WeightForm::stochastic})
          for (const GradientLife gradients :
               {GradientLife::always, GradientLife::used_at_once, GradientLife::sent_to_host}) {
            Levers head{.precision = precision, .optimizer = {rule, weights, wide}, .gradients = gradients};
            if (!allowed(question, head)) continue;
            for (const capstone::Layout& ranks : grids) {
              head.ranks = ranks, head.micro_batch = 0;
              if (!allowed(question, head) || !refused(work, head).empty()) continue;
              const std::size_t share = work.batch / ranks.dp;
              for (const std::size_t micro : divisors(share)) {
                head.micro_batch = micro == share ? 0 : micro;
                if (allowed(question, head) && refused(work, head).empty()) add_nodes(head);
              }
            }
          }
}

std::vector<capstone::Layout> LeversSearch::layouts() const {
  std::vector<capstone::Layout> all;
  for (std::size_t tp = 1; tp <= question_.gpus; ++tp) {
    if (!splits(work_.spec, tp)) continue;
    for (const std::size_t dp : divisors(work_.batch))
      for (std::size_t pp = 1; pp <= work_.spec.layers && tp * dp * pp <= question_.gpus; ++pp)
        for (int zero = 0; zero <= (dp == 1 ? 0 : pp > 1 ? 1 : 3); ++zero)
          all.push_back({.tp = tp, .dp = dp, .pp = pp, .zero = zero});
  }
  return all;
}

std::optional<double> LeversSearch::seconds_of(const Levers& levers, const ByCategory& bytes, double flops) const {
  Plan plan{.schedule = {}, .peak = bytes, .price = {.flops = flops}};
  if (levers.gradients == GradientLife::sent_to_host) capstone::add_offload(work_, levers, plan.price);
  return capstone::least_seconds(*question_.card, levers, plan);
}

LeversSearch::Least LeversSearch::least_of(const Levers& levers) const {
  const std::size_t micro = micro_batch_of(work_, levers), micros = micro_batches_of(work_, levers);
  const nn::StepForm form = form_of(levers);
  Least least;
  if (levers.ranks.ranks() == 1) {
    nn::Schedule schedule{{work_.spec.layers, false, form.keep}};
    if (levers.recompute) schedule = checkpointing::recompute_segments(work_.spec.layers, levers.recompute);
    least.flops = double(micros) * double(nn::step_flops(work_.spec, micro, work_.seq, schedule, form));
    least.state = resident_bytes(work_, levers);
    least.bytes = least.state.total();
    return least;
  }
  // The first stage has the embeddings, the last one the head; of those between, the last one has the fewest layers.
  const std::size_t pp = levers.ranks.pp;
  std::optional<ByCategory> state;
  for (const std::size_t stage : {std::size_t(0), pp - 1, pp > 2 ? pp - 2 : 0}) {
    const nn::StepLevers step = multi_gpu::rank_levers(work_.spec, levers.ranks, {0, 0, stage}, element_bytes(levers),
                                                       micro, micros, work_.seq, form);
    const ByCategory here = nn::unit_state_bytes(work_.spec, step);
    least.bytes = std::max(least.bytes, here.total());
    least.flops = std::max(least.flops, rank_flops(work_, levers, step.slice));
    if (!state) state = here;
    for (std::size_t c = 0; c < kCategoryCount; ++c) state->bytes[c] = std::min(state->bytes[c], here.bytes[c]);
  }
  least.state = *state;
  return least;
}

// Every layer has a few choices, each with bytes that it holds until its backward pass and operations that it computes
// again; all layers hold at most what is left beside the state and the head. Infinite where nothing can be held.
double LeversSearch::solved_flops(const Levers& levers, const ByCategory& state) const {
  const std::size_t micro = micro_batch_of(work_, levers), e = element_bytes(levers), layers = work_.spec.layers;
  const nn::StepForm form = form_of(levers);
  const nn::StepLevers step{.element_bytes = e, .sequences = micro, .seq = work_.seq, .form = form};
  const std::size_t fixed = state.total() + nn::token_batch_bytes(micro, work_.seq) +
                            nn::embedding_bytes(work_.spec, e, micro, work_.seq) +
                            nn::head_peak_bytes(work_.spec, step);
  if (fixed >= work_.room()) return kNever;
  const double room = double(work_.room() - fixed) / double(layers);
  const nn::LayerFlops layer = nn::layer_flops(work_.spec, micro, work_.seq, form);
  std::vector<nn::Segment> choices =
      checkpointing::segment_choices(std::min(layers, 2 * checkpointing::root_of(layers) + 2), form);
  choices.push_back({1, false, form.keep});
  std::vector<std::pair<double, double>> each;  // bytes and operations, of a layer
  for (const nn::Segment& s : choices)
    each.emplace_back(double(nn::segment_bytes(work_.spec, step, s).held) / double(s.layers),
                      double(nn::recompute_flops(layer, s)) / double(s.layers));
  double least = kNever;
  for (const auto& [held, cost] : each) {
    if (held > room) continue;
    least = std::min(least, cost);
    for (const auto& [more, less] : each)
      if (more > room && less < cost) least = std::min(least, cost + (less - cost) * (room - held) / (more - held));
  }
  const double nothing_again = double(nn::step_flops(work_.spec, micro, work_.seq, {{layers, false, {}}}, form));
  return double(micro_batches_of(work_, levers)) * (nothing_again + double(layers) * least);
}

void LeversSearch::add_nodes(const Levers& head) {
  const bool several = head.ranks.ranks() > 1;
  for (const AttentionForm attention : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused})
    for (const LossForm loss : {LossForm::full, LossForm::chunked})
      for (const bool lean : {false, true})
        for (const Kind kind : {Kind::none, Kind::segments, Kind::solved}) {
          Levers levers = head;
          levers.attention = attention, levers.loss = loss, levers.lean = lean;
          levers.recompute = kind == Kind::segments, levers.solved = kind == Kind::solved;
          if (!allowed(question_, levers) || !refused(work_, levers).empty()) continue;
          count_ += kind == Kind::segments && !several ? work_.spec.layers : 1;
          Least least = least_of(levers);
          if (kind == Kind::solved) least.flops = solved_flops(levers, least.state);
          const auto seconds = seconds_of(levers, least.state, least.flops);
          if (!seconds) continue;
          nodes_.push_back({levers, kind, *seconds, least.bytes, changes_between(base_, levers)});
        }
}

std::optional<Candidate> LeversSearch::tried(const Levers& levers) const {
  ++plans_;
  Plan plan = plan_of(work_, levers);
  const auto seconds = capstone::least_seconds(*question_.card, levers, plan);
  if (!seconds) return std::nullopt;
  return Candidate{levers, std::move(plan), *seconds, changes_between(base_, levers)};
}

// All that the node stands for, but what `hopeless` says of a bound.
void LeversSearch::try_node(const Node& node, const std::function<bool(double seconds)>& hopeless,
                            const std::function<void(Candidate)>& found) const {
  const std::size_t longest = node.kind == Kind::segments && node.levers.ranks.ranks() == 1 ? work_.spec.layers : 1;
  for (std::size_t n = 1; n <= longest; ++n) {
    Levers levers = node.levers;
    if (node.kind == Kind::segments) levers.recompute = n;
    if (n > 1) {  // longer segments compute no less again
      const Least least = least_of(levers);
      if (hopeless(seconds_of(levers, least.state, least.flops).value_or(kNever))) return;
    }
    if (auto candidate = tried(levers)) found(std::move(*candidate));
  }
}

std::optional<Candidate> LeversSearch::first_that_fits(bool changes_first) const {
  const auto key = [=](double seconds, std::size_t changes) {
    return changes_first ? std::pair(double(changes), seconds) : std::pair(seconds, double(changes));
  };
  const auto key_of = [=](const auto& x) { return key(x.seconds, x.changes); };
  std::vector<const Node*> order;
  for (const Node& node : nodes_)
    if (node.bytes <= work_.room() && node.seconds < kNever) order.push_back(&node);
  std::ranges::stable_sort(order, {}, [=](const Node* n) { return key_of(*n); });
  std::optional<Candidate> best;
  for (const Node* node : order) {
    const auto hopeless = [&](double seconds) { return best && key(seconds, node->changes) > key_of(*best); };
    if (hopeless(node->seconds)) break;  // and so are all after it
    try_node(*node, hopeless, [&](Candidate c) {
      if (fits(c) && (!best || std::pair(key_of(c), c.peak()) < std::pair(key_of(*best), best->peak())))
        best = std::move(c);
    });
  }
  return best;
}

std::optional<Candidate> LeversSearch::least() const {
  std::vector<const Node*> order;
  for (const Node& node : nodes_)
    if (node.kind != Kind::solved) order.push_back(&node);
  std::ranges::stable_sort(order, {}, [](const Node* n) { return n->bytes; });
  std::optional<Candidate> best;
  for (const Node* node : order) {
    if (best && (node->bytes >= best->peak() || fits(*best))) break;
    try_node(
        *node, [&](double) { return best && fits(*best); },
        [&](Candidate c) {
          if (!best || c.peak() < best->peak()) best = std::move(c);
        });
  }
  if (best && fits(*best)) return best;
  for (const Node& node : nodes_) {  // segments of unequal lengths may hold a little less than those of equal ones
    if (node.kind != Kind::solved || node.seconds == kNever || node.bytes > work_.room()) continue;
    auto solved = tried(node.levers);
    if (solved && (!best || solved->peak() < best->peak())) best = std::move(solved);
    if (best && fits(*best)) break;
  }
  return best;
}

}  // namespace oomlab::fit
