#include "plan/search/task.h"

#include <algorithm>

#include "plan/lever/list.h"

namespace oomlab::plan {

Levers step_as_it_is(const SearchTask& task) {
  Levers levers;
  levers.precision = task.precision.value_or(DType::fp32);
  levers.optimizer.weights = usual_weights(levers.precision);
  for (std::uint64_t dp = 1; dp <= task.cards; ++dp)
    if (task.one.batch % dp == 0) levers.ranks.dp = dp;
  return levers;
}

bool allowed(const SearchTask& task, const Levers& levers) {
  // How many of their pages are on the device is the driver's choice, and so is how long they take to come.
  if (levers.optimizer.paged_moments) return false;
  // A schedule is solved for a device that holds its inputs.
  if (levers.checkpoints_on_host && levers.solved) return false;
  if (levers.ranks.cp > 1 && (task.cards > kCardsOfWholeSearch || task.several.seq < kTokensToShare)) return false;
  // A search is for sequences of one length.
  if (levers.pack) return false;
  if (task.precision && levers.precision != *task.precision) return false;
  if (numbers_of(task.work_of(levers), levers).change > task.change) return false;
  if (task.without.empty()) return true;
  Levers as_asked;  // a precision that is asked for is no lever that is pulled
  as_asked.precision = task.precision.value_or(DType::fp32);
  const auto left_out = [&](const LeverWord& word) {
    return task.without.contains(word.name) && word.used(levers) && !word.used(as_asked);
  };
  for (const Lever* lever : all_levers())
    if (std::ranges::any_of(lever->words, left_out)) return false;
  return true;
}

namespace {

bool uses_all_it_can(const Layout& grid, std::uint64_t layers, std::uint64_t cards) {
  const std::uint64_t sharing = grid.tp * grid.dp;
  return grid.pp == std::min(layers, cards / sharing) && 2 * grid.ranks() > cards;
}

bool worth_trying(const SearchTask& task, const Levers& levers) {
  if (task.cards <= kCardsOfWholeSearch || levers.ranks.ranks() == 1) return true;
  Levers plain;
  plain.precision = levers.precision;
  plain.optimizer.weights = usual_weights(levers.precision);
  const bool is_plain = levers.precision != DType::fp16 && levers.optimizer == plain.optimizer &&
                        levers.gradients == nn::GradientLife::always;
  return is_plain || uses_all_it_can(levers.ranks, task.several.spec.layers, task.cards);
}

}  // namespace

std::vector<Levers> combinations(const SearchTask& task, const Levers& base, Lever::Changes changes) {
  const auto sensible = [&](const Levers& levers) {
    const Levers asked = changes == Lever::Changes::state ? with_any_pass(levers) : levers;
    return asked.ranks.ranks() <= task.cards && worth_trying(task, asked) &&
           refused(task.work_of(asked), asked).empty() && allowed(task, asked);
  };
  // A value that undoes what another lever has chosen is that lever's to try.
  const auto touches_others = [](const Lever* own, const Levers& before, const Levers& after) {
    return std::ranges::any_of(all_levers(),
                               [&](const Lever* other) { return other != own && other->differs(before, after); });
  };
  std::vector<Levers> all{base};
  for (const Lever* lever : all_levers()) {
    if (lever->changes != changes) continue;
    const std::vector<Levers> values = lever->tries({task.several, task.cards});
    std::vector<Levers> more;
    for (const Levers& before : all)
      for (const Levers& value : values) {
        Levers after = before;
        lever->take(value, after);
        if (!touches_others(lever, before, after) && sensible(after)) more.push_back(std::move(after));
      }
    all = std::move(more);
  }
  return all;
}

bool tries_each_length(const SearchTask& task, const Levers& levers) {
  return levers.recompute > 0 && (levers.ranks.ranks() == 1 || task.cards <= kCardsOfWholeSearch);
}

Levers with_any_pass(Levers state) {
  if (state.ranks.ring()) state.attention = nn::AttentionForm::fused;
  return state;
}

Levers with_pass(Levers state, const Levers& pass) {
  for (const Lever* lever : all_levers())
    if (lever->changes == Lever::Changes::activations) lever->take(pass, state);
  return state;
}

}  // namespace oomlab::plan
