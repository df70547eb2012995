#include "plan/search/search.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>

namespace oomlab::plan {
namespace {

std::vector<std::uint64_t> divisors(std::uint64_t n) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    all.push_back(d);
    if (d * d != n) all.push_back(n / d);
  }
  std::ranges::sort(all);
  return all;
}

// Numbers in ascending order of their keys. Of millions the first few decide: a heap, for no more is sorted than is asked for.
template <class KeyOf>
class Ascending {
 public:
  Ascending(std::vector<std::uint32_t>& numbers, KeyOf key_of) : numbers_(numbers), key_of_(key_of) {
    std::ranges::make_heap(numbers_, std::greater{}, key_of_);
  }

  std::optional<std::uint32_t> next() {
    if (numbers_.empty()) return std::nullopt;
    std::ranges::pop_heap(numbers_, std::greater{}, key_of_);
    const std::uint32_t number = numbers_.back();
    numbers_.pop_back();
    return number;
  }

 private:
  std::vector<std::uint32_t>& numbers_;
  KeyOf key_of_;
};

// A device's bytes and operations do not depend on which optimizer is in host memory.
Levers with_usual_host_optimizer(const Work& work, Levers levers) {
  if (step_of(work, levers).optimizer_on_host()) levers.optimizer = {.weights = usual_weights(levers.precision)};
  return levers;
}

}  // namespace

LeversSearch::LeversSearch(const SearchTask& task) : task_(task), base_(step_as_it_is(task)), bounds_(task) {
  // What makes sense of a pass depends on nothing else but whether there are several ranks; so it is asked for later.
  SearchTask of_one = task;
  of_one.precision.reset();
  of_one.change = Numbers::Change::other;
  passes_ = combinations(of_one, {}, Lever::Changes::activations);
  std::erase_if(passes_, [](const Levers& pass) { return pass.recompute > 1; });
  for (const Levers& state : combinations(task, {}, Lever::Changes::state)) add(state);
}

const std::vector<std::uint8_t>& LeversSearch::passes_for(const Levers& state) {
  auto& passes = state.ranks.ranks() > 1 ? passes_of_several_ : passes_of_one_;
  if (passes) return *passes;
  passes.emplace();
  for (std::size_t p = 0; p < passes_.size(); ++p) {
    const Levers levers = with_pass(state, passes_[p]);
    if (levers.solved && state.ranks.ranks() > 1) continue;  // a solver for each stage, a dozen times: too long
    if (allowed(task_, levers) && refused(task_.work_of(levers), levers).empty()) passes->push_back(std::uint8_t(p));
  }
  return *passes;
}

// Ascending: the whole share alone, or all that are smaller.
std::span<const std::uint64_t> LeversSearch::micros_of(std::uint64_t share, bool parts) {
  const auto [at, fresh] = divisors_.try_emplace(share);
  if (fresh) at->second = divisors(share);
  const std::span<const std::uint64_t> all = at->second;
  return parts ? all.first(all.size() - 1) : all.last(1);
}

Bound LeversSearch::bound_of(const Levers& levers, std::span<const std::uint64_t> micros) {
  try {
    return bounds_.of(task_.work_of(levers), levers, checkpoints_of(levers), micros);
  } catch (const std::length_error&) {
    return {kNever, UINT64_MAX};  // beyond 64 bits: nothing has room for it
  }
}

void LeversSearch::add(const Levers& state) {
  states_.push_back(state);
  const std::uint64_t share = share_of(task_.one, state);
  for (const bool parts : {true, false}) {
    const std::span<const std::uint64_t> micros = micros_of(share, parts);
    if (micros.empty()) continue;
    Levers smallest = state;
    smallest.micro_batch = parts ? micros.front() : 0;
    // One that divides the share is like any other.
    if (!allowed(task_, smallest) || !refused(task_.work_of(smallest), smallest).empty()) continue;
    for (const std::uint8_t p : passes_for(state)) {
      const Levers levers = with_pass(smallest, passes_[p]);
      count_ += micros.size() * (tries_each_length(task_, levers) ? task_.one.spec.layers : 1);
      const Bound bound = bound_of(levers, micros);
      if (task_.progress) task_.progress(count_, planned_);
      families_.push_back({.seconds = bound.seconds,
                           .bytes = bound.bytes,
                           .state = std::uint32_t(states_.size() - 1),
                           .pass = p,
                           .changes = std::uint8_t(changes_between(base_, levers)),
                           .parts = parts});
    }
  }
}

std::optional<Candidate> LeversSearch::plan(const Levers& levers) {
  ++planned_;
  if (task_.progress) task_.progress(count_, planned_);
  try {
    Plan plan = plan_of(task_.work_of(levers), levers, [this](const auto&... of) { return schedule_of(of...); });
    const auto seconds = least_seconds(*task_.card, levers, plan, task_.host_gb_per_s);
    if (!seconds || plan.price.host_bytes > task_.host_bytes) return std::nullopt;
    return Candidate{levers, std::move(plan), *seconds, changes_between(base_, levers), {}};
  } catch (const std::length_error&) {
    return std::nullopt;
  }
}

nn::Schedule LeversSearch::schedule_of(const Work& work, const Levers& levers, const RankCoordinates& place) {
  if (!levers.solved || levers.ranks.ranks() > 1) return plan::schedule_of(work, levers, place);
  const std::string device = options_of(with_usual_host_optimizer(work, levers));
  if (const auto at = solved_.find(device); at != solved_.end()) return at->second;
  return solved_.emplace(device, plan::schedule_of(work, levers, place)).first->second;
}

void LeversSearch::open(const Family& family, const Hopeless& hopeless, const Found& found) {
  Levers levers = with_pass(states_[family.state], passes_[family.pass]);
  const std::uint64_t longest = tries_each_length(task_, levers) ? task_.one.spec.layers : 1;
  for (const std::uint64_t micro : micros_of(share_of(task_.one, levers), family.parts)) {
    levers.micro_batch = family.parts ? micro : 0;
    const Bound bound = bound_of(levers, {&micro, 1});
    if (hopeless(bound.seconds, bound.bytes)) continue;
    for (std::uint64_t n = 1; n <= longest; ++n) {
      if (longest > 1) levers.recompute = n;
      // Longer segments compute no less again.
      if (n > 1 && hopeless(bounds_.seconds_of_segments(task_.work_of(levers), levers), bound.bytes)) break;
      auto candidate = plan(levers);
      if (!candidate) continue;
      candidate->place = {family.state, micro, family.pass, n};
      found(*candidate);
    }
  }
}

std::optional<Candidate> LeversSearch::first_that_fits(bool changes_first) {
  const auto key = [=](double seconds, std::uint64_t changes) {
    return changes_first ? std::pair(double(changes), seconds) : std::pair(seconds, double(changes));
  };
  const auto key_of = [=](const auto& x) { return key(x.seconds, x.changes); };
  std::vector<std::uint32_t> order;  // of families; by number where they are alike
  for (std::size_t f = 0; f < families_.size(); ++f)
    if (families_[f].bytes <= task_.work_of(states_[families_[f].state]).room() && families_[f].seconds < kNever)
      order.push_back(std::uint32_t(f));
  Ascending ascending(order, [&](std::uint32_t f) { return std::pair(key_of(families_[f]), f); });
  std::optional<Candidate> best;
  const auto worse = [&](double seconds, std::uint64_t changes) {
    return best && key(seconds, changes) > key_of(*best);
  };
  while (const auto f = ascending.next()) {
    const Family& family = families_[*f];
    if (worse(family.seconds, family.changes)) break;  // and so are all after it
    const std::uint64_t room = task_.work_of(states_[family.state]).room();
    open(
        family,
        [&](double seconds, std::uint64_t bytes) {
          return bytes > room || seconds == kNever || worse(seconds, family.changes);
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
  // FP16 has BF16's bytes and a loss scale.
  std::set<std::tuple<std::string, std::uint8_t, bool>> seen;
  const auto device_of = [&](const Family& family) {
    Levers levers = states_[family.state];
    if (levers.precision == DType::fp16) levers.precision = DType::bf16;
    levers = with_usual_host_optimizer(task_.work_of(levers), levers);
    return std::tuple(options_of(levers), family.pass, family.parts);
  };
  std::vector<std::uint32_t> order;
  for (std::size_t f = 0; f < families_.size(); ++f)
    if (!passes_[families_[f].pass].solved && families_[f].bytes != UINT64_MAX) order.push_back(std::uint32_t(f));
  Ascending ascending(order, [&](std::uint32_t f) { return std::pair(families_[f].bytes, f); });
  std::optional<Candidate> best;
  while (const auto f = ascending.next()) {
    const Family& family = families_[*f];
    if (best && family.bytes > best->peak()) break;
    const auto device = device_of(family);
    if (seen.contains(device)) continue;
    open(
        family,
        [&](double seconds, std::uint64_t bytes) { return seconds == kNever || (best && bytes > best->peak()); },
        [&](Candidate& c) {
          seen.insert(device);
          if (!best || std::pair(c.peak(), c.place) < std::pair(best->peak(), best->place)) best = std::move(c);
        });
  }
  return best;
}

}  // namespace oomlab::plan
