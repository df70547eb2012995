#pragma once
// Whether it trains as well: every optimizer from five seeds, so that a difference can be told from chance.

#include <algorithm>
#include <numeric>

#include "harness/finding_key.h"
#include "training.h"

namespace oomlab::optimizer_memory {

/// Losses after training, one for each seed, by the variant's name.
using Losses = std::map<std::string, std::vector<double>>;
inline constexpr std::size_t kSeeds = 5, kHeldSamples = 64;

inline double mean_of(const std::vector<double>& losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / double(losses.size());
}
/// The loss of the same samples after `steps` steps, from one seed: of the first weights, of the order of samples, and
/// of stochastic rounding.
inline double loss_after(const Config& config, Task task, const Recipe& recipe, std::size_t steps, std::uint64_t seed) {
  const auto text_of = [&](std::uint64_t number) {
    return std::make_shared<const data::TextSampler>(
        data::course_text(), data::TextSampler::Settings{
                                 .seq = task.seq,
                                 .task = task.spec.bert() ? data::TextTask::masked_token : data::TextTask::next_token,
                                 .mask_token = static_cast<int>(task.spec.vocabulary) - 1,
                                 .seed = number});
  };
  task.text = text_of(seed), task.seed = seed;
  const data::TokenSamples held = text_of(1000)->samples(0, kHeldSamples);
  double loss = 0;
  Ledger ledger;
  with_context(config, kUnlimited, ledger, [&](Context& context) {
    with_type_of(recipe, [&]<class T>(T) {
      nn::OptimizerSettings settings;
      settings.seed = seed;
      Training<T> training(context, task, recipe, nullptr, settings);
      for (std::size_t step = 0; step < steps; ++step) {
        check_interrupt();
        training.step();
      }
      loss = training.loss_of(held, kHeldSamples);
    });
  });
  return loss;
}
inline std::vector<double> losses_after(const Config& config, const Task& task, const Recipe& recipe,
                                        std::size_t steps) {
  std::vector<double> losses;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) losses.push_back(loss_after(config, task, recipe, steps, seed));
  return losses;
}

/// The losses of all variants that were run, computed when they are first asked for.
class Learning {
 public:
  /// `steps`: of each training; 0: none.
  Learning(const Config& config, Task task, std::vector<Recipe> recipes, std::size_t steps)
      : config_(config), task_(std::move(task)), recipes_(std::move(recipes)), steps_(config.plan ? 0 : steps) {}
  const Losses& losses(const Results& results) {
    for (const Recipe& recipe : recipes_)
      if (steps_ != 0 && results.find(recipe.name) && !losses_.contains(recipe.name))
        losses_[recipe.name] = losses_after(config_, task_, recipe, steps_);
    return losses_;
  }
  std::size_t steps() const noexcept { return steps_; }
  const std::vector<Recipe>& recipes() const noexcept { return recipes_; }

 private:
  Config config_;
  Task task_;
  std::vector<Recipe> recipes_;
  std::size_t steps_;
  Losses losses_;
};

/// How far a variant's mean is from the baseline's, in spreads: the baseline's largest loss less its smallest one.
inline std::optional<double> spreads_apart(const Losses& losses, const std::string& name, const std::string& baseline) {
  if (!losses.contains(name) || !losses.contains(baseline)) return std::nullopt;
  const std::vector<double>& of = losses.at(baseline);
  const auto [least, most] = std::minmax_element(of.begin(), of.end());
  return ratio(mean_of(losses.at(name)) - mean_of(of), *most - *least);
}
/// Whether its mean lies between the baseline's smallest and largest loss.
inline bool within_spread(const Losses& losses, const std::string& name, const std::string& baseline) {
  const std::vector<double>& of = losses.at(baseline);
  const auto [least, most] = std::minmax_element(of.begin(), of.end());
  const double mean = mean_of(losses.at(name));
  return *least <= mean && mean <= *most;
}

inline void show_losses(const Results& results, Report& report, Learning& learning) {
  const Losses& losses = learning.losses(results);
  const std::vector<Recipe>& recipes = learning.recipes();
  const std::string& baseline = recipes.front().name;
  if (!losses.contains(baseline)) return;
  report.line(fmt::format("loss after {} steps, {} seeds        mean   least    most   from {}'s mean, in its spreads",
                          learning.steps(), kSeeds, baseline));
  for (const Recipe& recipe : recipes) {
    if (!losses.contains(recipe.name)) continue;
    const std::vector<double>& of = losses.at(recipe.name);
    const auto [least, most] = std::minmax_element(of.begin(), of.end());
    const double apart = spreads_apart(losses, recipe.name, baseline).value_or(0);
    report.line(fmt::format("  {:<30} {:>8.4f} {:>7.4f} {:>7.4f}   {:>+6.2f}{}", recipe.name, mean_of(of), *least,
                            *most, apart, within_spread(losses, recipe.name, baseline) ? "" : "   outside"));
    report.figure("loss_" + finding_key(recipe.name), mean_of(of));
  }
  report.line("");
}

}  // namespace oomlab::optimizer_memory
