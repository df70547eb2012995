#include "plan/search/search.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>

#include "plan/lever/list.h"

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
  Ascending(std::deque<std::uint32_t>& numbers, KeyOf key_of) : numbers_(numbers), key_of_(key_of) {
    std::ranges::make_heap(numbers_, std::greater{}, key_of_);
  }

  void add(std::uint32_t number) {
    numbers_.push_back(number);
    std::ranges::push_heap(numbers_, std::greater{}, key_of_);
  }
  std::optional<std::uint32_t> next() {
    if (numbers_.empty()) return std::nullopt;
    std::ranges::pop_heap(numbers_, std::greater{}, key_of_);
    const std::uint32_t number = numbers_.back();
    numbers_.pop_back();
    return number;
  }

 private:
  std::deque<std::uint32_t>& numbers_;
  KeyOf key_of_;
};

// A device's bytes and operations do not depend on which optimizer is in host memory.
Levers with_usual_host_optimizer(const Work& work, Levers levers) {
  if (step_of(work, levers).optimizer_on_host()) levers.optimizer = {.weights = usual_weights(levers.precision)};
  return levers;
}

}  // namespace

LeversSearch::LeversSearch(const SearchTask& task) : task_(task), base_(step_as_it_is(task)), bounds_(task) {
  make_passes();
  for (const Levers& state : combinations(task, {}, Lever::Changes::state)) add(state);
}

void LeversSearch::make_passes() {
  std::vector<const Lever*> further;
  for (const Lever* lever : all_levers())
    if (lever->saves_memory_alone) further.push_back(lever);
  const auto has = [](const Levers& pass, const Lever* lever) { return lever->differs({}, pass); };
  // What makes sense of a pass depends on nothing else but whether there are several ranks; so it is asked for later.
  SearchTask of_one = task_;
  of_one.precision.reset();
  of_one.change = Numbers::Change::other;
  passes_ = combinations(of_one, {}, Lever::Changes::activations);
  std::erase_if(passes_, [&](const Levers& pass) {
    return pass.recompute > 1 || std::ranges::any_of(further, [&](const Lever* lever) { return has(pass, lever); });
  });
  first_passes_ = passes_.size();
  kind_.assign(first_passes_, 0);
  std::vector<Levers> kinds{{}};
  for (std::size_t p = 0; p < passes_.size(); ++p) {
    further_.emplace_back();
    // Each combination of them once: of those behind the last one that it has.
    const auto last = std::ranges::find_if(further.rbegin(), further.rend(),
                                           [&](const Lever* lever) { return has(passes_[p], lever); });
    for (auto lever = last.base(); lever != further.end(); ++lever)
      for (const Levers& value : (*lever)->tries({task_.several, task_.cards})) {
        if (!has(value, *lever)) continue;
        Levers kind = kinds[kind_[p]];
        (*lever)->take(value, kind);
        auto at = std::ranges::find(kinds, kind);
        if (at == kinds.end()) at = kinds.insert(kinds.end(), kind);
        kind_.push_back(std::uint16_t(at - kinds.begin()));
        further_[p].push_back(std::uint16_t(passes_.size()));
        Levers pass = passes_[p];
        (*lever)->take(value, pass);
        passes_.push_back(pass);
      }
  }
}

const std::vector<std::uint16_t>& LeversSearch::passes_for(const Levers& state) {
  const Layout& grid = state.ranks;
  const auto [at, fresh] = passes_for_.try_emplace({grid.ranks() > 1, grid.cp > 1, grid.context});
  std::vector<std::uint16_t>& passes = at->second;
  if (!fresh) return passes;
  for (std::size_t p = 0; p < first_passes_; ++p) {
    const Levers levers = with_pass(state, passes_[p]);
    if (levers.solved && state.ranks.ranks() > 1) continue;  // a solver for each stage, a dozen times: too long
    if (allowed(task_, levers) && refused(task_.work_of(levers), levers).empty()) passes.push_back(std::uint16_t(p));
  }
  return passes;
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

const std::vector<std::uint64_t>& LeversSearch::micros_with_further(const Levers& state, bool parts) {
  const std::uint64_t share = share_of(task_.one, state);
  const auto [at, fresh] = with_further_.try_emplace({state.ranks.tp, state.ranks.cp, share, parts});
  if (!fresh) return at->second;
  std::vector<std::uint64_t>& counts = at->second;
  const auto goes = [&](std::uint64_t micro, const Levers& pass) {
    Levers levers = with_any_pass(with_pass(state, pass));
    levers.micro_batch = parts ? micro : 0;
    return allowed(task_, levers) && refused(task_.work_of(levers), levers).empty();
  };
  for (std::size_t p = 0; p < passes_.size(); ++p) {
    if (kind_[p] != counts.size()) continue;  // one pass stands for all of its kind
    const auto micros = micros_of(share, parts);
    counts.push_back(std::uint64_t(
        std::ranges::count_if(micros, [&](std::uint64_t micro) { return p == 0 || goes(micro, passes_[p]); })));
  }
  return counts;
}

void LeversSearch::add(const Levers& state) {
  states_.push_back(state);
  const std::uint64_t share = share_of(task_.one, state);
  for (const bool parts : {true, false}) {
    const std::span<const std::uint64_t> micros = micros_of(share, parts);
    if (micros.empty()) continue;
    Levers smallest = with_any_pass(state);
    smallest.micro_batch = parts ? micros.front() : 0;
    // One that divides the share is like any other.
    if (!allowed(task_, smallest) || !refused(task_.work_of(smallest), smallest).empty()) continue;
    const std::vector<std::uint64_t>& further = micros_with_further(state, parts);
    const std::uint64_t ways = std::accumulate(further.begin(), further.end(), std::uint64_t(0));
    for (const std::uint16_t p : passes_for(state)) {
      const Levers levers = with_pass(state, passes_[p]);
      count_ += ways * (tries_each_length(task_, levers) ? task_.one.spec.layers : 1);
      add(std::uint32_t(states_.size() - 1), p, parts);
      // Where a schedule is solved, what holds less may be computed again less often.
      if (levers.solved)
        for (auto f = std::uint32_t(families_.size() - 1); f < families_.size(); ++f) add_further(f);
    }
  }
}

void LeversSearch::add(std::uint32_t state, std::uint16_t pass, bool parts) {
  Levers levers = with_pass(states_[state], passes_[pass]);
  const std::span<const std::uint64_t> micros = micros_of(share_of(task_.one, levers), parts);
  levers.micro_batch = parts ? micros.front() : 0;
  const Bound bound = bound_of(levers, micros);
  if (task_.progress) task_.progress(count_, planned_);
  families_.push_back({.seconds = bound.seconds,
                       .bytes = bound.bytes,
                       .state = state,
                       .pass = pass,
                       .changes = std::uint8_t(changes_between(base_, levers)),
                       .parts = parts});
}

std::uint32_t LeversSearch::add_further(std::uint32_t family) {
  const auto first = std::uint32_t(families_.size());
  if (families_[family].has_further) return first;
  families_[family].has_further = true;
  const auto [state, pass, parts] =
      std::tuple(families_[family].state, families_[family].pass, bool(families_[family].parts));
  for (const std::uint16_t p : further_[pass])
    if (micros_with_further(states_[state], parts)[kind_[p]] > 0) add(state, p, parts);
  return first;
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
    if (kind_[family.pass] != 0 && !refused(task_.work_of(levers), levers).empty()) continue;
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

std::optional<Candidate> LeversSearch::first_that_fits(First first) {
  using Key = std::tuple<std::uint64_t, std::uint64_t, double, std::uint64_t>;
  const auto key = [=](std::uint64_t host_bytes, double seconds, std::uint64_t changes) {
    return first == First::fewest_changes ? Key(0, changes, seconds, 0)
                                          : Key(first == First::least_host_bytes ? host_bytes : 0, 0, seconds, changes);
  };
  std::vector<std::uint64_t> host_bytes(states_.size());
  if (first == First::least_host_bytes)
    std::ranges::transform(states_, host_bytes.begin(),
                           [&](const Levers& state) { return bounds_.least_host_bytes(task_.work_of(state), state); });
  const auto key_of = [&](const Family& f) { return key(host_bytes[f.state], f.seconds, f.changes); };
  const auto key_of_candidate = [&](const Candidate& c) { return key(c.plan.price.host_bytes, c.seconds, c.changes); };
  std::deque<std::uint32_t> order;  // of families; by number where they are alike
  for (std::size_t f = 0; f < families_.size(); ++f)
    if (families_[f].seconds < kNever) order.push_back(std::uint32_t(f));
  Ascending ascending(order, [&](std::uint32_t f) { return std::pair(key_of(families_[f]), f); });
  std::optional<Candidate> best;
  const auto worse = [&](const Key& than) { return best && than > key_of_candidate(*best); };
  while (const auto f = ascending.next()) {
    const Family family = families_[*f];
    if (worse(key_of(family))) break;  // and so are all after it
    for (std::uint32_t more = add_further(*f); more < families_.size(); ++more)
      if (families_[more].seconds < kNever) ascending.add(more);
    const std::uint64_t room = task_.work_of(states_[family.state]).room();
    if (family.bytes > room) continue;
    open(
        family,
        [&](double seconds, std::uint64_t bytes) {
          return bytes > room || seconds == kNever || worse(key(host_bytes[family.state], seconds, family.changes));
        },
        [&](Candidate& c) {
          const auto rank_of = [&](const Candidate& x) { return std::tuple(key_of_candidate(x), x.peak(), x.place); };
          if (fits(c) && (!best || rank_of(c) < rank_of(*best))) best = std::move(c);
        });
  }
  return best;
}

// Where nothing fits a solved schedule is that of every layer, which is among the others.
std::optional<Candidate> LeversSearch::closest() {
  // FP16 has BF16's bytes and a loss scale.
  std::set<std::tuple<std::string, std::uint16_t, bool>> seen;
  const auto device_of = [&](const Family& family) {
    Levers levers = states_[family.state];
    if (levers.precision == DType::fp16) levers.precision = DType::bf16;
    levers = with_usual_host_optimizer(task_.work_of(levers), levers);
    return std::tuple(options_of(levers), family.pass, family.parts);
  };
  for (std::uint32_t f = 0; f < families_.size(); ++f) add_further(f);
  std::deque<std::uint32_t> order;
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
