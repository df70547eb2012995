#pragma once
// Every lever of the course in one struct: what a combination of them needs, to the byte, and what it costs at least,
// in closed form and without a run. It needs no harness: a program that searches all combinations includes this file.
//
//   lever                      chapter   what it changes
//   micro_batch                02        activations: of some samples at a time
//   precision                  03        bytes per element; FP16 has a loss scale
//   recompute, solved          04        activations: of some layers at a time
//   gradients: sent_to_host    05, 13    the optimizer's state lies in host memory
//   ranks                      07        the state, the layers or the samples, shared out
//   attention, loss, lean      08        no scores, no logits, nothing kept that is cheap to compute again
//   optimizer                  13        bytes per parameter
//   gradients: used_at_once    13        gradients of a layer at a time

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "../04_checkpointing/solver.h"
#include "../07_multi_gpu/layout_rule.h"
#include "dtype.h"
#include "nn/compact_optimizer.h"
#include "nn/mixed_precision.h"
#include "plan/card.h"
#include "plan/flops.h"
#include "plan/step_units.h"

namespace oomlab::capstone {

using multi_gpu::Layout;
using nn::GradientLife, nn::OptimizerForm, nn::UpdateRule, nn::WeightForm;

/// What is trained, and for schedules that are solved, under which budget.
struct Work {
  nn::TransformerSpec spec;
  std::size_t batch = 1, seq = 1;
  std::size_t budget = kUnlimited;  ///< bytes
  std::size_t workspace = 0;        ///< of it, bytes for cuBLAS
  std::size_t room() const { return budget == kUnlimited ? budget : budget - std::min(budget, workspace); }
};

/// The weights that go without saying.
inline WeightForm usual_weights(DType precision) {
  return precision == DType::fp32 ? WeightForm::stored : WeightForm::master;
}

/// How a step goes about it. By default as textbooks have it: FP32, AdamW, everything kept.
struct Levers {
  DType precision = DType::fp32;  ///< of weights, gradients and activations: one of kModelDTypes
  std::size_t micro_batch = 0;    ///< samples of one forward and backward pass; 0: all that a rank has
  nn::AttentionForm attention = nn::AttentionForm::textbook;
  nn::LossForm loss = nn::LossForm::full;
  bool lean = false;          ///< nn::Keep::lean(), and MLPs that are computed again do that by quarters of the rows
  std::size_t recompute = 0;  ///< segments of so many layers are recomputed from their input; 0: none
  bool solved = false;        ///< instead: chapter 04's solver, for the budget
  OptimizerForm optimizer{};  ///< weights: stored in FP32, stored, stochastic or master in BF16, master in FP16
  GradientLife gradients = GradientLife::always;
  Layout ranks{};
  friend bool operator==(const Levers&, const Levers&) = default;
};

// ------------------------------------------------------------------------------------------- what makes no sense

inline std::size_t micro_batch_of(const Work& work, const Levers& levers) {
  return levers.micro_batch ? levers.micro_batch : work.batch / levers.ranks.dp;
}
inline std::size_t micro_batches_of(const Work& work, const Levers& levers) {
  return work.batch / levers.ranks.dp / micro_batch_of(work, levers);
}

/// Why several ranks cannot do what one can; empty when they can.
inline std::string ranks_refused(const Levers& levers) {
  const Layout& l = levers.ranks;
  if (l.ranks() == 1) return "";
  if (levers.precision == DType::fp16)
    return "--precision fp16 is for one rank: its loss scale is not shared; take bf16";
  const bool plain =
      levers.optimizer.rule == UpdateRule::adamw && levers.optimizer.weights == usual_weights(levers.precision);
  if (!plain) return "several ranks take --optimizer adamw, with --weights master in bf16: others are for one rank";
  if (levers.gradients != GradientLife::always)
    return "several ranks add their gradients up after the backward pass: leave --in-backward and --offload out";
  if (levers.solved || levers.recompute > 1)
    return "several ranks take --checkpoint none or 1: segments and solved schedules are for one rank";
  return "";
}

/// Why this combination makes no sense, in one line that says what to change; empty when it does.
inline std::string refused(const Work& work, const Levers& levers) {
  const nn::TransformerSpec& spec = work.spec;
  if (work.seq > spec.positions)
    return fmt::format("--seq {} is longer than the {} positions of model '{}'", work.seq, spec.positions, spec.name);
  if (levers.attention == nn::AttentionForm::fused && spec.depth() > nn::kFusedDepth)
    return fmt::format("--attention fused takes heads of up to {} values; those of model '{}' have {}", nn::kFusedDepth,
                       spec.name, spec.depth());
  if (std::string why = multi_gpu::layout_refused(spec, levers.ranks, work.batch, levers.micro_batch); !why.empty())
    return why;
  const std::size_t share = work.batch / levers.ranks.dp, micro = micro_batch_of(work, levers);
  if (levers.recompute > spec.layers)
    return fmt::format("--checkpoint {}: model '{}' has {} layers", levers.recompute, spec.name, spec.layers);

  const OptimizerForm& optimizer = levers.optimizer;
  if (levers.precision == DType::fp32 && optimizer.weights != WeightForm::stored)
    return fmt::format("--weights {} is for 16 bits; in fp32 the weights are their own master copy",
                       name_of(optimizer.weights));
  if (levers.precision == DType::fp16 &&
      (optimizer.rule != UpdateRule::adamw || optimizer.weights != WeightForm::master))
    return "--precision fp16 takes --optimizer adamw --weights master, which leave out steps that overflow; take bf16";
  if (optimizer.wide_embeddings && optimizer.rule != UpdateRule::adamw8)
    return "--wide-embeddings is about the moments of --optimizer adamw8";
  if (std::string why = ranks_refused(levers); !why.empty()) return why;

  if (levers.gradients == GradientLife::always) return "";
  const std::string once = levers.gradients == GradientLife::used_at_once
                               ? "--in-backward uses a gradient and frees it: "
                               : "--offload sends a gradient to the host and frees it: ";
  if (levers.precision == DType::fp16)
    return once + "an overflow in any layer would have to stop updates that are done; take bf16";
  if (micro != share) return once + "it cannot be added to another micro-batch's; leave --micro-batch out";
  if (levers.gradients == GradientLife::sent_to_host &&
      (optimizer.rule != UpdateRule::adamw || optimizer.weights != usual_weights(levers.precision)))
    return "--offload takes --optimizer adamw, with --weights master in bf16: host memory need not be small";
  return "";
}

// ------------------------------------------------------------------------------------------------ bytes and price

inline std::size_t element_bytes(const Levers& levers) { return element_bytes(levers.precision); }

/// Chapter 08's form of a step; of several ranks also what chapter 07 keeps.
inline nn::StepForm form_of(const Levers& levers) {
  nn::StepForm form{levers.attention, levers.loss, levers.lean ? nn::Keep::lean() : nn::Keep{}, levers.lean};
  if (levers.ranks.ranks() > 1) form.keep.layer = levers.recompute == 0;
  return form;
}

/// What stays allocated from step to step, of one rank.
inline ByCategory resident_bytes(const Work& work, const Levers& levers) {
  ByCategory bytes;
  if (levers.precision == DType::fp16)
    bytes[Category::optimizer] = checked_sum(checked_product(nn::tensor_bytes(work.spec, sizeof(float)), 3),
                                             nn::scale_state_bytes());  // masters, moments, loss scale
  else if (levers.gradients != GradientLife::sent_to_host)
    bytes = nn::optimizer_bytes(work.spec, levers.optimizer);
  bytes[Category::parameters] = nn::tensor_bytes(work.spec, element_bytes(levers));
  if (levers.gradients == GradientLife::always) bytes[Category::gradients] = bytes[Category::parameters];
  bytes[Category::workspace] += round_to_granule(sizeof(float));  // the loss
  return bytes;
}

/// The walk of one rank's step (plan/step_walk.h) with this schedule.
inline ByCategory peak_bytes(const Work& work, const Levers& levers, const nn::Schedule& schedule,
                             const ByCategory& resident) {
  const nn::StepLevers step{.element_bytes = element_bytes(levers),
                            .sequences = micro_batch_of(work, levers),
                            .seq = work.seq,
                            .form = form_of(levers),
                            .schedule = schedule,
                            .micro_batches = micro_batches_of(work, levers),
                            .gradients = levers.gradients};
  return nn::walk_step(work.spec, step, resident).at_peak;
}

/// The schedule that recomputes least among all that chapter 04's solver finds within the budget; every layer,
/// where nothing fits. Where gradients come and go with the layers, which the solver does not know of, it gets less
/// room until what it finds fits: then a schedule that computes a little less again may exist.
inline nn::Schedule solved_schedule(const Work& work, const Levers& levers) {
  const std::size_t layers = work.spec.layers, micro_batch = micro_batch_of(work, levers);
  const nn::StepForm form = form_of(levers);
  const ByCategory resident = resident_bytes(work, levers);
  nn::Schedule best = checkpointing::recompute_segments(layers, 1);
  std::optional<std::uint64_t> least;
  const auto fits = [&](const nn::Schedule& schedule) {
    if (peak_bytes(work, levers, schedule, resident).total() > work.room()) return false;
    const std::uint64_t flops = nn::step_flops_of_each(work.spec, micro_batch, work.seq, schedule, form);
    if (!least || flops < *least) least = flops, best = schedule;
    return true;
  };
  const auto solve = [&](std::size_t room) {
    return checkpointing::solve_schedule(work.spec, element_bytes(levers), micro_batch, work.seq, room, resident, form);
  };
  const auto exact = solve(work.room());
  if (!exact || fits(*exact)) return best;
  fits({{layers, false, form.keep}});
  for (std::size_t low = 0, high = work.room(), tries = 0; tries < 16; ++tries) {
    const std::size_t middle = low + (high - low) / 2;
    const auto found = solve(middle);
    (found && !fits(*found) ? high : low) = middle;
  }
  return best;
}
/// What a rank's layers keep.
inline nn::Schedule schedule_of(const Work& work, const Levers& levers) {
  if (levers.solved) return solved_schedule(work, levers);
  if (levers.recompute) return checkpointing::recompute_segments(work.spec.layers, levers.recompute);
  return {{work.spec.layers, false, form_of(levers).keep}};
}

/// What the processor's update moves. It begins when the first gradients are there, after the forward pass, and goes on
/// beside the backward pass. The token table's gradients are there last, with nothing left to compute beside them.
struct HostUpdate {
  double bytes = 0;           ///< of host memory, read and written
  double last_bytes = 0;      ///< of these the token table's
  double last_bus_bytes = 0;  ///< its gradients down, its weights up
  double forward_flops = 0;   ///< before it begins
};
/// What a step costs beside memory, on the rank that has most to do.
struct Price {
  double flops = 0;              ///< of matrix products; fused attention's as if it had some
  double bus_bytes = 0;          ///< over the bus, in the busier direction
  double link_bytes = 0;         ///< sent to other ranks
  std::size_t pinned_bytes = 0;  ///< of host memory
  HostUpdate update{};
};

struct Plan {
  nn::Schedule schedule;  ///< of one rank
  ByCategory peak;        ///< of the rank that needs most, without cuBLAS's workspace
  Price price;
};

/// Bytes of host memory that AdamW on the processor reads and writes for a parameter: gradient, master weight and two
/// moments; master weight, two moments, and the weight that goes up. 28 with 16-bit weights.
inline double update_bytes(std::size_t element_bytes) { return double(element_bytes + 12 + 12 + element_bytes); }

/// The bus, pinned memory and update of chapter 13's ProcessorAdamW.
inline void add_offload(const Work& work, const Levers& levers, Price& price) {
  const nn::UnitElements units(work.spec, {.element_bytes = element_bytes(levers)});
  const std::size_t e = element_bytes(levers);
  const std::size_t largest = std::max({units.token, units.embedding, units.layer, units.head});
  for (const auto& [elements, count] :
       {std::pair(units.token, std::size_t(1)), std::pair(units.embedding, std::size_t(1)),
        std::pair(units.layer, units.layers), std::pair(units.head, std::size_t(1))}) {
    price.pinned_bytes += 6 * count * round_to_granule(checked_product(elements, sizeof(float)));
    price.bus_bytes += double(count) * double(elements) * double(e);  // gradients come down, with what pads a unit
  }
  price.pinned_bytes += 4 * round_to_granule(checked_product(largest, e));
  const double token = double(work.spec.vocabulary) * double(work.spec.width);
  nn::TransformerSpec none = work.spec;
  none.layers = 0;
  const nn::LayerFlops layer = nn::layer_flops_of_each(work.spec, work.batch, work.seq, form_of(levers));
  const double head = double(nn::step_flops_of_each(none, work.batch, work.seq)) / 3;  // one of three passes
  price.update = {.bytes = update_bytes(e) * double(work.spec.parameters()),
                  .last_bytes = update_bytes(e) * token,
                  .last_bus_bytes = 2 * double(e) * token,
                  .forward_flops = double(work.batch) * (double(layer.forward) * double(work.spec.layers) + head)};
}

/// A stage's share of the operations. A tensor-parallel part tiles attention in its own way: its products are left out.
inline double rank_flops(const Work& work, const Levers& levers, const nn::Slice& slice) {
  const nn::StepForm form = form_of(levers);
  const std::size_t micro = micro_batch_of(work, levers);
  nn::TransformerSpec part = work.spec;
  part.layers = 0;
  const double head = double(nn::step_flops_of_each(part, micro, work.seq));
  part.layers = slice.layers;
  double layers = double(nn::step_flops_of_each(part, micro, work.seq, {}, form)) - head;
  if (slice.parts > 1 && levers.attention == nn::AttentionForm::tiled) {
    const nn::LayerFlops of = nn::layer_flops_of_each(part, micro, work.seq);
    const double linear = double(of.forward) - 2 * double(of.probabilities);
    layers = double(slice.layers) * (3 * linear + (form.keep.layer ? 0 : linear - double(of.last_product)));
  }
  return double(work.batch / levers.ranks.dp) * (layers / double(slice.parts) + (slice.has_head(work.spec) ? head : 0));
}

inline Plan plan_of_ranks(const Work& work, const Levers& levers) {
  Plan plan{.schedule = {{work.spec.layers, false, form_of(levers).keep}}, .peak = {}, .price = {}};
  PeakBytes largest, next;
  for (const std::size_t stage : multi_gpu::kinds_of_stage(work.spec, levers.ranks)) {
    const multi_gpu::RankCoordinates place{0, 0, stage};
    const nn::StepLevers step =
        multi_gpu::rank_levers(work.spec, levers.ranks, place, element_bytes(levers), micro_batch_of(work, levers),
                               micro_batches_of(work, levers), work.seq, form_of(levers));
    next.at_peak = multi_gpu::rank_bytes(work.spec, step);
    largest = later_peak(largest, next);
    plan.price.flops = std::max(plan.price.flops, rank_flops(work, levers, step.slice));
    plan.price.link_bytes =
        std::max(plan.price.link_bytes, double(multi_gpu::sent_by_rank(work.spec, levers.ranks, place, step)));
  }
  plan.peak = largest.at_peak;
  return plan;
}

/// Peak and price of a step. Throws std::invalid_argument with refused()'s line where there is one, and
/// std::length_error when a figure does not fit 64 bits. Takes microseconds; a solved schedule, milliseconds.
inline Plan plan_of(const Work& work, const Levers& levers) {
  if (const std::string why = refused(work, levers); !why.empty()) throw std::invalid_argument(why);
  if (levers.ranks.ranks() > 1) return plan_of_ranks(work, levers);
  Plan plan{.schedule = schedule_of(work, levers), .peak = {}, .price = {}};
  plan.peak = peak_bytes(work, levers, plan.schedule, resident_bytes(work, levers));
  plan.price.flops = double(work.batch) * double(nn::step_flops_of_each(work.spec, micro_batch_of(work, levers),
                                                                        work.seq, plan.schedule, form_of(levers)));
  if (levers.gradients == GradientLife::sent_to_host) add_offload(work, levers, plan.price);
  return plan;
}

/// GB/s in one direction: PCIe 5.0 with 16 lanes, and NVLink of a B200. With slower ones a step takes longer; a bound
/// from below stays one.
inline constexpr double kBusGbPerS = 63, kLinkGbPerS = 900;
/// GB/s of host memory, at most: a channel of DDR5-6400 has 51.2. Desktops have two of them, a server's socket up
/// to 12.
inline constexpr double kDesktopGbPerS = 102.4, kServerGbPerS = 614.4;
/// Of the machine that a card is taken to be in: GeForce cards (rtx-3060, gtx-1660, ...) are in desktops.
inline double host_gb_per_s(const Card& card) {
  const std::string_view name = card.name;
  const auto digit = [&](std::size_t at, char least, char most) {
    return name.size() > at && name[at] >= least && name[at] <= most;
  };
  const bool rtx = name.starts_with("rtx-") && digit(4, '2', '5') && digit(5, '0', '0') && digit(6, '5', '9');
  return rtx || name.starts_with("gtx-") ? kDesktopGbPerS : kServerGbPerS;
}

/// Of the bus to the host: a card's own is taken where it is faster. Memory that is the host's, too, needs no bus.
inline double bus_gb_per_s(const Card& card) {
  return card.bus_gb_per_s == 0 ? card.gb_per_s : std::max(kBusGbPerS, card.bus_gb_per_s);
}

/// No step takes less: the largest of computing, moving (plan/card.h), the bus, the links, and host memory, in which
/// the processor's update begins after the forward pass, and ends after all else. Seconds; nothing when the card does
/// not compute so. `host_gb_per_s`: of host memory, where not the card's own.
inline std::optional<double> least_seconds(const Card& card, const Levers& levers, const Plan& plan,
                                           std::optional<double> host_gb_per_s = std::nullopt) {
  const auto least = least_time(card, levers.precision, plan.price.flops, plan.peak);
  if (!least) return std::nullopt;
  const double bus_bytes_per_s = bus_gb_per_s(card) * 1e9;
  const double bus = plan.price.bus_bytes / bus_bytes_per_s, link = plan.price.link_bytes / (kLinkGbPerS * 1e9);
  const double seconds = std::max({least->seconds(), bus, link});
  const HostUpdate& update = plan.price.update;
  if (update.bytes == 0) return seconds;
  const double host_bytes_per_s = host_gb_per_s.value_or(capstone::host_gb_per_s(card)) * 1e9;
  const double last = update.last_bus_bytes / bus_bytes_per_s + update.last_bytes / host_bytes_per_s;
  const double forward = least_time(card, levers.precision, update.forward_flops, {})->computing_seconds;
  return std::max({seconds, least->computing_seconds + last, forward + update.bytes / host_bytes_per_s, forward + bus});
}

// ------------------------------------------------------------------------------------------------------ in words

/// The options that make 16_capstone do just this: "--precision bf16 --lean --checkpoint 1".
inline std::string options_of(const Levers& levers) {
  std::string words = fmt::format("--precision {}", name_of(levers.precision));
  const auto add = [&](bool said, const std::string& more) {
    if (said) words += " " + more;
  };
  add(levers.micro_batch != 0, fmt::format("--micro-batch {}", levers.micro_batch));
  add(levers.attention != nn::AttentionForm::textbook, fmt::format("--attention {}", nn::name_of(levers.attention)));
  add(levers.loss != nn::LossForm::full, fmt::format("--loss {}", nn::name_of(levers.loss)));
  add(levers.lean, "--lean");
  add(levers.recompute != 0, fmt::format("--checkpoint {}", levers.recompute));
  add(levers.solved, "--checkpoint solved");
  const OptimizerForm& optimizer = levers.optimizer;
  add(optimizer.rule != UpdateRule::adamw, fmt::format("--optimizer {}", nn::name_of(optimizer.rule)));
  add(optimizer.weights != usual_weights(levers.precision),
      fmt::format("--weights {}", nn::name_of(optimizer.weights)));
  add(optimizer.wide_embeddings, "--wide-embeddings");
  add(levers.gradients == GradientLife::used_at_once, "--in-backward");
  add(levers.gradients == GradientLife::sent_to_host, "--offload");
  const Layout& ranks = levers.ranks;
  add(ranks.tp > 1, fmt::format("--tp {}", ranks.tp));
  add(ranks.pp > 1, fmt::format("--pp {}", ranks.pp));
  add(ranks.dp > 1, fmt::format("--dp {}", ranks.dp));
  add(ranks.zero > 0, fmt::format("--zero {}", ranks.zero));
  return words;
}

/// The command that plans this: `model` is "--model bert-large", or a --config.
inline std::string command_of(const std::string& model, const Work& work, const Levers& levers) {
  std::string words = fmt::format("16_capstone --plan {} --batch {} --seq {}", model, work.batch, work.seq);
  if (levers.solved && work.budget != kUnlimited) words += fmt::format(" --budget {}", work.budget);
  return words + " --filter chosen " + options_of(levers);
}

}  // namespace oomlab::capstone
