#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "plan/flops.h"
#include "plan/lever/list.h"
#include "plan/schedule.h"

namespace oomlab::plan {

nn::StepLevers step_of(const Work& work, const Levers& levers, const RankCoordinates& place) {
  nn::StepLevers step{.seq = work.seq};
  for (const Lever* lever : all_levers()) lever->apply(work, levers, place, step);
  return step;
}

nn::StepForm form_of(const Work& work, const Levers& levers) { return step_of(work, levers).form; }

ByCategory resident_bytes(const Work& work, const Levers& levers) {
  ByCategory bytes;
  bytes[Category::parameters] = nn::tensor_bytes(work.spec, element_bytes(levers));
  bytes[Category::gradients] = bytes[Category::parameters];
  bytes[Category::workspace] = round_to_granule(sizeof(float));  // the loss
  for (const Lever* lever : all_levers()) lever->resident(work, levers, bytes);
  return bytes;
}

ByCategory peak_bytes(const Work& work, const Levers& levers, const nn::Schedule& schedule,
                      const ByCategory& resident) {
  nn::StepLevers step = step_of(work, levers);
  step.schedule = schedule;
  return nn::simulate_step(work.spec, step, resident).at_peak;
}

namespace {

// Where gradients come and go with the layers, which the solver does not know of, it gets less room until what it finds
// fits: then a schedule that computes a little less again may exist.
nn::Schedule solved_schedule(const Work& work, const Levers& levers) {
  const std::uint64_t layers = work.spec.layers;
  const std::uint64_t micro_batch = micro_batch_of(work, levers);
  const nn::StepForm form = form_of(work, levers);
  const ByCategory resident = resident_bytes(work, levers);
  nn::Schedule best = nn::recompute_segments(layers, 1);
  std::optional<std::uint64_t> least;
  const auto fits = [&](const nn::Schedule& schedule) {
    if (peak_bytes(work, levers, schedule, resident).total() > work.room()) return false;
    const std::uint64_t flops = nn::step_flops_of_each(work.spec, micro_batch, work.seq, schedule, form);
    if (!least || flops < *least) {
      least = flops;
      best = schedule;
    }
    return true;
  };
  const auto solve = [&](std::uint64_t room) {
    return nn::solve_schedule(work.spec, element_bytes(levers), micro_batch, work.seq, room, resident, form);
  };
  const auto exact = solve(work.room());
  if (!exact || fits(*exact)) return best;
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

// A stage's share of the operations.
double rank_flops(const Work& work, const Levers& levers, const nn::StepLevers& step) {
  const nn::StepForm& form = step.form;
  const nn::Slice& slice = step.slice;
  nn::TransformerSpec part = work.spec;
  part.layers = 0;
  const double head = double(nn::step_flops_of_each(part, step.sequences, work.seq));
  part.layers = slice.layers;
  double layers = double(nn::step_flops_of_each(part, step.sequences, work.seq, {}, form)) - head;
  if (slice.parts > 1 && form.attention == nn::AttentionForm::tiled)
    layers = double(slice.layers) * layer_flops_of_tiled_parts(part, step.sequences, work.seq, !form.keep.layer);
  return double(share_of(work, levers)) * (layers / double(slice.parts) + (slice.has_head(work.spec) ? head : 0));
}

Plan plan_of_ranks(const Work& work, const Levers& levers) {
  Plan plan{.schedule = {{work.spec.layers, false, form_of(work, levers).keep}}, .peak = {}, .price = {}};
  PeakBytes largest;
  PeakBytes next;
  for (const std::uint64_t stage : kinds_of_stage(work.spec, levers.ranks)) {
    const RankCoordinates place{.stage = stage};
    const nn::StepLevers step = step_of(work, levers, place);
    next.at_peak = rank_bytes(work.spec, step);
    largest = later_peak(largest, next);
    plan.price.flops = std::max(plan.price.flops, rank_flops(work, levers, step));
    const double sent = double(sent_by_rank(work.spec, levers.ranks, place, step));
    plan.price.link_bytes = std::max(plan.price.link_bytes, sent);
  }
  plan.peak = largest.at_peak;
  return plan;
}

}  // namespace

nn::Schedule schedule_of(const Work& work, const Levers& levers) {
  if (levers.solved) return solved_schedule(work, levers);
  const nn::StepLevers step = step_of(work, levers);
  if (!step.schedule.empty()) return step.schedule;
  return {{work.spec.layers, false, step.form.keep}};
}

double layer_flops_of_tiled_parts(const nn::TransformerSpec& spec, std::uint64_t micro_batch, std::uint64_t seq,
                                  bool recomputed) {
  const nn::LayerFlops layer = nn::layer_flops_of_each(spec, micro_batch, seq);
  const double linear = double(layer.forward) - 2 * double(layer.probabilities);
  return 3 * linear + (recomputed ? linear - double(layer.last_product) : 0);
}

Plan plan_of(const Work& work, const Levers& levers) {
  if (const std::string why = refused(work, levers); !why.empty()) throw std::invalid_argument(why);
  if (levers.ranks.ranks() > 1) return plan_of_ranks(work, levers);
  Plan plan{.schedule = schedule_of(work, levers), .peak = {}, .price = {}};
  plan.peak = peak_bytes(work, levers, plan.schedule, resident_bytes(work, levers));
  const std::uint64_t each =
      nn::step_flops_of_each(work.spec, micro_batch_of(work, levers), work.seq, plan.schedule, form_of(work, levers));
  plan.price.flops = double(work.batch) * double(each);
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
  const double bus = plan.price.bus_bytes / bus_bytes_per_s;
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
  if ((levers.solved || with_budget) && work.budget != kUnlimited) words += fmt::format(" --budget {}", work.budget);
  return words + " --filter chosen " + options_of(levers);
}

}  // namespace oomlab::plan
