#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "plan/flops.h"
#include "plan/host_state.h"
#include "plan/lever/list.h"
#include "plan/schedule.h"

namespace oomlab::plan {

nn::StepLevers step_of(const Work& work, const Levers& levers, const RankCoordinates& place) {
  nn::StepLevers step{.seq = work.seq};
  for (const Lever* lever : all_levers()) lever->apply(work, levers, place, step);
  return step;
}

nn::StepForm form_of(const Work& work, const Levers& levers) { return step_of(work, levers).form; }

namespace {

bool several(const Levers& levers) { return levers.ranks.ranks() > 1; }

// The solver knows one rank, and gradients of everything that are always there. For all else it gets less room until what it finds
// fits: then a schedule that computes a little less again may exist.
nn::Schedule solved_schedule(const Work& work, const Levers& levers, const RankCoordinates& place) {
  nn::StepLevers step = step_of(work, levers, place);
  const nn::StepForm& form = step.form;
  const std::uint64_t layers = step.slice.end(work.spec) - step.slice.first_layer;
  const nn::TransformerSpec part = nn::with_layers(work.spec, layers);
  const ByCategory resident = resident_bytes(work.spec, step, several(levers));
  nn::Schedule best = nn::recompute_segments(layers, 1);
  std::optional<std::uint64_t> least;
  const auto fits = [&](const nn::Schedule& schedule) {
    step.schedule = schedule;
    if (nn::simulate_step(work.spec, step, resident).at_peak.total() > work.room()) return false;
    const std::uint64_t flops = nn::step_flops_of_each(part, step.sequences, step.seq, schedule, form);
    if (!least || flops < *least) {
      least = flops;
      best = schedule;
    }
    return true;
  };
  const auto solve = [&](std::uint64_t room) {
    return nn::solve_schedule(part, step.element_bytes, step.sequences, step.seq, room, resident, form);
  };
  const auto exact = solve(work.room());
  if (exact && fits(*exact)) return best;
  if (!exact && !several(levers) && !step.frozen()) return best;
  fits({{layers, false, form.keep}});
  std::uint64_t low = 0;
  std::uint64_t high = work.room();
  for (int tries = 0; tries < 16; ++tries) {
    const std::uint64_t middle = low + (high - low) / 2;
    const auto found = solve(middle);
    (found && !fits(*found) ? high : low) = middle;
  }
  return best;
}

// Of all ranks on stages of a kind, whose first stage makes this step. A stage behind that has fewer micro-batches in
// flight, and fewer inputs of layers wait on the host.
void add_host_bytes(const Work& work, const Levers& levers, const KindOfRank& kind, const Schedules& schedules,
                    nn::StepLevers step, Plan& plan) {
  const std::uint64_t sharing = levers.ranks.tp * levers.ranks.replicas();
  const bool alike = !levers.checkpoints_on_host || levers.pack;  // packed there is one stage
  const std::uint64_t stages = alike ? 1 : kind.ranks / sharing;
  for (std::uint64_t stage = kind.stage; stage < kind.stage + stages; ++stage) {
    if (stage > kind.stage) {
      step = step_of(work, levers, {.stage = stage});
      step.schedule = schedules(work, levers, {.stage = stage});
    }
    const HostBytes host = nn::host_bytes(work.spec, step);
    if (host.total() > plan.host.total()) plan.host = host;
    const std::uint64_t ranks = alike ? kind.ranks : sharing;
    plan.price.host_bytes = checked_sum(plan.price.host_bytes, checked_product(ranks, host.total()));
  }
}

}  // namespace

ByCategory resident_bytes(const Work& work, const Levers& levers, const RankCoordinates& place) {
  return resident_bytes(work.spec, step_of(work, levers, place), several(levers));
}

nn::Schedule schedule_of(const Work& work, const Levers& levers, const RankCoordinates& place) {
  if (levers.solved) return solved_schedule(work, levers, place);
  const nn::StepLevers step = step_of(work, levers, place);
  if (!step.schedule.empty()) return step.schedule;
  return {{step.slice.end(work.spec) - step.slice.first_layer, false, step.form.keep}};
}

namespace {

// Of one sequence of `seq` tokens, where attention takes so many of them at once; on all ranks that share out its tokens.
double flops_of_sequence(const Work& work, const nn::StepLevers& step, std::uint64_t head_shares,
                         std::uint64_t sequences, std::uint64_t seq, const nn::Schedule& schedule) {
  const nn::StepForm& form = step.form;
  const nn::Slice& slice = step.slice;
  const nn::Trained trained = step.trained;
  const double head = double(nn::step_flops_of_each(nn::with_layers(work.spec, 0), sequences, seq, {}, {}, trained));
  const nn::TransformerSpec of_slice = nn::with_layers(work.spec, slice.end(work.spec) - slice.first_layer);
  const double layers =
      double(nn::step_flops_of_each(of_slice, sequences, seq, schedule, form, trained, head_shares)) - head;
  double adapters = 0;
  if (step.frozen())
    adapters = double(nn::adapter_flops_of_each(work.spec, step.adapters, slice.parts, seq, schedule, form));
  return layers / double(slice.parts) + (slice.has_head(work.spec) ? head : 0) + adapters;
}

}  // namespace

double rank_flops(const Work& work, const Levers& levers, const RankCoordinates& place, const nn::Schedule& schedule) {
  const nn::StepLevers step = step_of(work, levers, place);
  const std::uint64_t head_shares = levers.ranks.head_shares();
  if (!step.packed()) {
    const double of_all_tokens = flops_of_sequence(work, step, head_shares, step.sequences, work.seq, schedule);
    // A zig-zag gives each rank that shares out tokens as many scores.
    return double(share_of(work, levers)) * of_all_tokens / double(step.context_ranks);
  }
  double all = 0;
  step.lengths.each(share_of(work, levers), [&](std::uint64_t tokens, std::uint64_t times) {
    all += double(times) * flops_of_sequence(work, step, head_shares, 1, tokens, schedule);
  });
  return all;
}

namespace {

// A rank that stands for `ranks` of them.
struct OneOf {
  RankCoordinates place;
  std::uint64_t ranks;
};
// Stages that need as much are one kind; where sequences are packed, each replica has its own lengths.
std::vector<OneOf> ranks_to_plan(const Work& work, const Levers& levers) {
  const std::uint64_t replicas = levers.pack ? levers.ranks.dp : 1;
  std::vector<OneOf> all;
  for (const auto& [stage, ranks] : kinds_of_rank(work.spec, levers.ranks))
    for (std::uint64_t replica = 0; replica < replicas; ++replica)
      all.push_back({{.replica = replica, .stage = stage}, ranks / replicas});
  return all;
}

}  // namespace

Plan plan_of(const Work& work, const Levers& levers) { return plan_of(work, levers, schedule_of); }

Plan plan_of(const Work& work, const Levers& levers, const Schedules& schedules) {
  if (const std::string why = refused(work, levers); !why.empty()) throw std::invalid_argument(why);
  Plan plan;
  PeakBytes largest;
  PeakBytes next;
  for (const auto& [place, ranks] : ranks_to_plan(work, levers)) {
    const nn::Schedule schedule = schedules(work, levers, place);
    nn::StepLevers step = step_of(work, levers, place);
    step.schedule = schedule;
    if (place.stage == 0 && place.replica == 0) plan.schedule = schedule;
    next.at_peak = rank_bytes(work.spec, step, several(levers));
    largest = later_peak(largest, next);
    plan.price.flops = std::max(plan.price.flops, rank_flops(work, levers, place, schedule));
    add_host_bytes(work, levers, {place.stage, ranks}, schedules, step, plan);
    if (!several(levers)) continue;
    const double sent = double(sent_by_rank(work.spec, levers.ranks, place, step));
    plan.price.link_bytes = std::max(plan.price.link_bytes, sent);
  }
  plan.peak = largest.at_peak;
  for (const Lever* lever : all_levers()) lever->price(work, levers, plan.price);
  return plan;
}

double host_gb_per_s(const Card& card) {
  const std::string_view name = card.name;
  const auto digit = [&](std::size_t at, char least, char most) {
    return name.size() > at && name[at] >= least && name[at] <= most;
  };
  const bool rtx = name.starts_with("rtx-") && digit(4, '2', '5') && digit(5, '0', '0') && digit(6, '5', '9');
  return rtx || name.starts_with("gtx-") ? kDesktopGbPerS : kServerGbPerS;
}

namespace {

// Of the bus to the host: a card's own is taken where it is faster. Memory that is the host's, too, needs no bus.
double bus_gb_per_s(const Card& card) {
  return card.bus_gb_per_s == 0 ? card.gb_per_s : std::max(kBusGbPerS, card.bus_gb_per_s);
}

}  // namespace

std::optional<double> least_seconds(const Card& card, const Levers& levers, const Plan& plan,
                                    std::optional<double> host_gb_per_s) {
  const auto least = least_time(card, levers.precision, plan.price.flops, plan.peak);
  if (!least) return std::nullopt;
  const double bus_bytes_per_s = bus_gb_per_s(card) * 1e9;
  const double left = double(card.total_bytes()) - double(plan.peak.total());
  const double paged = std::max(0.0, plan.price.paged_bytes - std::max(0.0, left));
  const double bus = (plan.price.bus_bytes + plan.price.checkpoint_bytes + paged) / bus_bytes_per_s;
  const double link = plan.price.link_bytes / (kLinkGbPerS * 1e9);
  const double seconds = std::max({least->seconds(), bus, link});
  const HostUpdate& update = plan.price.update;
  if (update.bytes == 0) return seconds;
  const double host_bytes_per_s = host_gb_per_s.value_or(plan::host_gb_per_s(card)) * 1e9;
  const double last = update.last_bus_bytes / bus_bytes_per_s + update.last_bytes / host_bytes_per_s;
  const double forward = least_time(card, levers.precision, update.forward_flops, {})->computing_seconds;
  return std::max({seconds, least->computing_seconds + last, forward + update.bytes / host_bytes_per_s, forward + bus});
}

std::string command_of(const std::string& model, const Work& work, const Levers& levers, bool with_budget) {
  std::string words = fmt::format("16_capstone --plan {} --batch {} --seq {}", model, work.batch, work.seq);
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(work.batch, work.lengths.size()); ++i)
    words += fmt::format("{}{}", i == 0 ? " --lengths " : ",", work.lengths[i]);
  if ((levers.solved || with_budget) && work.budget != kUnlimited) words += fmt::format(" --budget {}", work.budget);
  return words + " --filter chosen " + options_of(levers);
}

}  // namespace oomlab::plan
