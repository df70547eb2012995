#include "levers_search.h"

#include <algorithm>
#include <stdexcept>

#include "harness/chapter.h"

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

Work work_for(const Question& question, std::size_t ranks) {
  const std::size_t budget = question.room.budget(ranks);
  return {question.spec, question.batch, question.seq, budget, round_to_granule(default_workspace(budget))};
}

Levers step_as_it_is(const Question& question) {
  Levers levers;
  levers.precision = question.precision.value_or(DType::fp32);
  levers.optimizer.weights = capstone::usual_weights(levers.precision);
  for (std::size_t dp = 1; dp <= question.gpus; ++dp)
    if (question.batch % dp == 0) levers.ranks.dp = dp;
  return levers;
}

bool allowed(const Question& question, const Levers& levers) {
  const auto& optimizer = levers.optimizer;
  if (question.precision && levers.precision != *question.precision) return false;
  const bool full = levers.precision == DType::fp32;
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

LeversSearch::LeversSearch(const Question& question, SearchProgress* progress)
    : question_(question),
      one_(work_for(question, 1)),
      several_(work_for(question, 2)),
      progress_(progress),
      base_(step_as_it_is(question)),
      bounds_(question) {
  for (const AttentionForm attention : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused})
    for (const LossForm loss : {LossForm::full, LossForm::chunked})
      for (const bool lean : {false, true})
        for (const Checkpoints checkpoints : {Checkpoints::none, Checkpoints::segments, Checkpoints::solved})
          forms_.push_back({attention, loss, lean, checkpoints});
  const std::vector<capstone::Layout> grids = layouts();
  for (const DType precision : kModelDTypes)
    for (const UpdateRule rule : {UpdateRule::adamw, UpdateRule::adamw8, UpdateRule::adafactor, UpdateRule::sgd})
      for (const bool wide : {false, true})
        for (const WeightForm weights : {WeightForm::stored, WeightForm::master, WeightForm::stochastic})
          for (const GradientLife gradients :
               {GradientLife::always, GradientLife::used_at_once, GradientLife::sent_to_host}) {
            Levers head{.precision = precision, .optimizer = {rule, weights, wide}, .gradients = gradients};
            if (!allowed(question, head)) continue;
            for (const capstone::Layout& ranks : grids) {
              head.ranks = ranks;
              if (allowed(question, head) && refused(work_of(head), head).empty()) add(head);
            }
          }
}

std::vector<capstone::Layout> LeversSearch::layouts() const {
  std::vector<capstone::Layout> all;
  for (std::size_t tp = 1; tp <= question_.gpus; ++tp) {
    if (!splits(one_.spec, tp)) continue;
    for (const std::size_t dp : divisors(one_.batch))
      for (std::size_t pp = 1; pp <= one_.spec.layers && tp * dp * pp <= question_.gpus; ++pp)
        for (int zero = 0; zero <= (dp == 1 ? 0 : pp > 1 ? 1 : 3); ++zero)
          all.push_back({.tp = tp, .dp = dp, .pp = pp, .zero = zero});
  }
  return all;
}

// What makes sense of a form depends on nothing else of the head but whether there are several ranks.
const std::vector<std::uint8_t>& LeversSearch::forms_of(const Levers& head) {
  auto& forms = head.ranks.ranks() > 1 ? forms_of_several_ : forms_of_one_;
  if (forms) return *forms;
  forms.emplace();
  for (std::size_t f = 0; f < forms_.size(); ++f) {
    const Levers levers = levers_of({head, 0}, forms_[f]);
    if (allowed(question_, levers) && refused(work_of(levers), levers).empty()) forms->push_back(std::uint8_t(f));
  }
  return *forms;
}

Levers LeversSearch::levers_of(const Head& head, const Form& form) const {
  Levers levers = head.levers;
  levers.attention = form.attention, levers.loss = form.loss, levers.lean = form.lean;
  levers.recompute = form.checkpoints == Checkpoints::segments, levers.solved = form.checkpoints == Checkpoints::solved;
  return levers;
}

// Ascending: the whole share alone, or all that are smaller.
std::span<const std::size_t> LeversSearch::micros_of(std::size_t share, bool parts) {
  const auto [at, fresh] = divisors_.try_emplace(share);
  if (fresh) at->second = divisors(share);
  const std::span<const std::size_t> all = at->second;
  return parts ? all.first(all.size() - 1) : all.last(1);
}

Bound LeversSearch::bound_of(const Levers& levers, Checkpoints checkpoints, std::span<const std::size_t> micros) {
  try {
    return bounds_.of(work_of(levers), levers, checkpoints, micros);
  } catch (const std::length_error&) {
    return {kNever, SIZE_MAX};  // beyond 64 bits: nothing has room for it
  }
}

void LeversSearch::add(const Levers& head) {
  const std::size_t share = one_.batch / head.ranks.dp;
  heads_.push_back({head, share});
  for (const bool parts : {true, false}) {
    const std::span<const std::size_t> micros = micros_of(share, parts);
    if (micros.empty()) continue;
    Levers smallest = head;
    smallest.micro_batch = parts ? micros.front() : 0;
    // One that divides the share is like any other.
    if (!allowed(question_, smallest) || !refused(work_of(smallest), smallest).empty()) continue;
    for (const std::uint8_t f : forms_of(head)) {
      const Checkpoints checkpoints = forms_[f].checkpoints;
      const bool each_length = checkpoints == Checkpoints::segments && head.ranks.ranks() == 1;
      count_ += micros.size() * (each_length ? one_.spec.layers : 1);
      const Levers levers = levers_of({smallest, share}, forms_[f]);
      const Bound bound = bound_of(levers, checkpoints, micros);
      if (progress_) progress_->at(count_, planned_);
      families_.push_back({.seconds = bound.seconds,
                           .bytes = bound.bytes,
                           .head = std::uint32_t(heads_.size() - 1),
                           .form = f,
                           .changes = std::uint8_t(changes_between(base_, levers)),
                           .parts = parts});
    }
  }
}

std::optional<Candidate> LeversSearch::plan(const Levers& levers) {
  ++planned_;
  if (progress_) progress_->at(count_, planned_);
  try {
    Plan plan = plan_of(work_of(levers), levers);
    const auto seconds = capstone::least_seconds(*question_.card, levers, plan, question_.host_gb_per_s);
    if (!seconds || plan.price.pinned_bytes > question_.room.host) return std::nullopt;
    return Candidate{levers, std::move(plan), *seconds, changes_between(base_, levers), {}};
  } catch (const std::length_error&) {
    return std::nullopt;
  }
}

void LeversSearch::open(const Family& family, const Hopeless& hopeless, const Found& found) {
  const Head& head = heads_[family.head];
  const Form& form = forms_[family.form];
  Levers levers = levers_of(head, form);
  const bool each_length = form.checkpoints == Checkpoints::segments && levers.ranks.ranks() == 1;
  for (const std::size_t micro : micros_of(head.share, family.parts)) {
    levers.micro_batch = family.parts ? micro : 0;
    const Bound bound = bound_of(levers, form.checkpoints, {&micro, 1});
    if (hopeless(bound.seconds, bound.bytes)) continue;
    for (std::size_t n = 1; n <= (each_length ? one_.spec.layers : 1); ++n) {
      if (each_length) levers.recompute = n;
      // Longer segments compute no less again.
      if (n > 1 && hopeless(bounds_.seconds_of_segments(work_of(levers), levers), bound.bytes)) break;
      auto candidate = plan(levers);
      if (!candidate) continue;
      candidate->place = {family.head, micro, family.form, n};
      found(*candidate);
    }
  }
}

std::optional<Candidate> LeversSearch::first_that_fits(bool changes_first) {
  const auto key = [=](double seconds, std::size_t changes) {
    return changes_first ? std::pair(double(changes), seconds) : std::pair(seconds, double(changes));
  };
  const auto key_of = [=](const auto& x) { return key(x.seconds, x.changes); };
  std::vector<const Family*> order;
  for (const Family& family : families_)
    if (family.bytes <= work_of(heads_[family.head].levers).room() && family.seconds < kNever) order.push_back(&family);
  std::ranges::stable_sort(order, {}, [=](const Family* f) { return key_of(*f); });
  std::optional<Candidate> best;
  const auto worse = [&](double seconds, std::size_t changes) { return best && key(seconds, changes) > key_of(*best); };
  for (const Family* family : order) {
    if (worse(family->seconds, family->changes)) break;  // and so are all after it
    const std::size_t room = work_of(heads_[family->head].levers).room();
    open(
        *family,
        [&](double seconds, std::size_t bytes) {
          return bytes > room || seconds == kNever || worse(seconds, family->changes);
        },
        [&](Candidate& c) {
          const auto rank_of = [&](const Candidate& x) { return std::tuple(key_of(x), x.peak(), x.place); };
          if (fits(c) && (!best || rank_of(c) < rank_of(*best))) best = std::move(c);
        });
  }
  return best;
}

// Where nothing fits a solved schedule is that of every layer, which is among the others.
std::optional<Candidate> LeversSearch::closest() {
  std::vector<const Family*> order;
  for (const Family& family : families_)
    if (forms_[family.form].checkpoints != Checkpoints::solved && family.bytes != SIZE_MAX) order.push_back(&family);
  std::ranges::stable_sort(order, {}, [](const Family* f) { return f->bytes; });
  std::optional<Candidate> best;
  for (const Family* family : order) {
    if (best && family->bytes > best->peak()) break;
    open(
        *family, [&](double seconds, std::size_t bytes) { return seconds == kNever || (best && bytes > best->peak()); },
        [&](Candidate& c) {
          if (!best || std::pair(c.peak(), c.place) < std::pair(best->peak(), best->place)) best = std::move(c);
        });
  }
  return best;
}

}  // namespace oomlab::fit
