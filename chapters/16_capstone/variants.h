#pragma once
// A table's rows as variants of a chapter: what each is predicted to need, how its numbers agree, and what runs it.

#include "ladder.h"

namespace oomlab::capstone {

/// Operations that the host runtime counts, too. Fused attention computes its own in kernels, which are not counted.
inline std::optional<double> counted_flops(const Work& work, const Levers& levers) {
  if (levers.attention == nn::AttentionForm::fused) return std::nullopt;
  return plan_of(work, levers).price.flops;
}

/// A row that trains, on one rank or on several.
inline Variant variant_of(const Row& row, const Work& work, const Text& text) {
  const Levers levers = row.levers;
  const auto with = [=](std::size_t batch) { return with_batch(work, levers, batch); };
  Variant variant{.name = row.name,
                  .batch = work.batch,
                  .predicted = [=](std::size_t batch) { return plan_of(with(batch), levers).peak; },
                  .agreement = agreement_of(work, levers),
                  .make = {},
                  .flops = [=](std::size_t batch) { return counted_flops(with(batch), levers); },
                  .dtype = levers.precision,
                  .predicted_on_host = [=](std::size_t batch) { return plan_of(with(batch), levers).host; }};
  if (levers.ranks.ranks() > 1) {
    variant.ranks = int(levers.ranks.ranks());
    variant.team = [=](std::size_t batch) { return make_team(with(batch), levers, text); };
    variant.flops = {};
  } else {
    variant.make = [=](Context& context, std::size_t batch) {
      return make_training(context, with(batch), levers, text);
    };
  }
  return variant;
}

}  // namespace oomlab::capstone
