#pragma once
// Chapter 01: what is said about smaller batches, and what the run found: the line through the peaks, and the largest
// batch that fits.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "batch_finder.h"
#include "harness/finding_key.h"
#include "plan/language.h"
#include "train/image_training.h"
#include "train/precision.h"

namespace oomlab::batch_reduction {

using train::ImageTraining;

inline constexpr auto kOptimizer = nn::UpdateRule::adamw;
inline constexpr std::size_t kLargestTried = 1u << 20;  // where the finder stops asking for more

/// A model of this run, with its peak in closed form.
struct Model {
  nn::MlpSpec spec;
  std::function<ByCategory(std::size_t batch)> predicted;
  std::string row(std::size_t batch) const { return fmt::format("{}, batch {}", spec.name, batch); }
  bool owns(const VariantResult& result) const { return result.name == row(result.batch); }
  /// Whether more than half of the peak depends on the batch.
  bool mostly_activations(std::size_t batch) const {
    const std::size_t one = predicted(1).total(), all = predicted(batch).total();
    return all - one > all / 2;
  }
};

// --------------------------------------------------------------------------------------------------- the straight line

/// peak = fixed + slope x batch, both in bytes: the least-squares line through a model's measured peaks.
struct Fit {
  double fixed = 0, slope = 0, largest_residual = 0;
  double at(double batch) const { return fixed + slope * batch; }
};

inline std::optional<Fit> fit_peaks(const Model& model, const Results& results) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const VariantResult& r : results) {
    if (!r.measured || !model.owns(r)) continue;
    const auto batch = double(r.batch), peak = double(r.peak_allocated);
    n += 1, x += batch, y += peak, xx += batch * batch, xy += batch * peak;
  }
  if (n < 2) return std::nullopt;
  Fit fit;
  fit.slope = (n * xy - x * y) / (n * xx - x * x);
  fit.fixed = (y - fit.slope * x) / n;
  for (const VariantResult& r : results)
    if (r.measured && model.owns(r))
      fit.largest_residual =
          std::max(fit.largest_residual, std::abs(double(r.peak_allocated) - fit.at(double(r.batch))));
  return fit;
}

// ---------------------------------------------------------------------------------------------------------- the claims

/// A model at which a claim is judged: peak bytes of a batch in FP32 with AdamW, everything included but the workspace.
struct Published {
  std::string name, what_it_is;
  bool mostly_activations;
  std::function<std::size_t(std::size_t batch)> peak;
};

inline std::vector<Published> published() {
  const auto gpt2 = nn::parse_transformer("gpt2");
  const auto mlp = nn::parse_model("mlp");
  return {
      {"gpt2 with 1,024 tokens", "a model of mostly activations", true,
       [=](std::size_t batch) { return train::predict_precision(gpt2, batch, 1024, train::Precision::fp32).total(); }},
      {"mlp with 44.7 million parameters", "a model of mostly weights", false,
       [=](std::size_t batch) { return nn::predict_training(mlp, batch, kOptimizer).total(); }}};
}

/// The fixed part in samples: as many of them need the same bytes again.
inline double fixed_in_samples(const std::function<std::size_t(std::size_t batch)>& peak) {
  const double one = double(peak(1)), slope = (double(peak(65)) - one) / 64;
  return (one - slope) / slope;
}

/// One claim about cutting the batch from `from` to `to`. `figure(small, large)` compares two peaks. `model` is the one
/// of this run that is alike, if there is one.
inline Claim cutting(const Published& at, const Model* model, std::size_t workspace, const std::string& text,
                     const std::string& what, std::size_t from, std::size_t to, Range range,
                     const std::function<std::optional<double>(double small, double large)>& figure) {
  const std::size_t parts = from / to;
  const auto first = holds_from([&](std::size_t small) {
    return range.has(figure(double(at.peak(small)), double(at.peak(small * parts))).value());
  });
  const std::string where = fmt::format("from batch {} on", first.value() * parts);
  Claim claim{.text = fmt::format("{}, {}", text, at.what_it_is),
              .what = first.value() <= to ? fmt::format("{} ({} {})", what, describe(range), where) : what,
              .range = range,
              .size = fmt::format("{}, batch {} to {}", at.name, from, to),
              .at_size = [=] { return figure(double(at.peak(to)), double(at.peak(from))); },
              .from_batch = [=] { return std::optional(first.value() * parts); }};
  if (!model) return claim;
  claim.measure = [=, model = *model](const Results& results) -> std::optional<double> {
    const auto fit = fit_peaks(model, results);
    return fit ? figure(fit->at(double(to)), fit->at(double(from))) : std::nullopt;
  };
  claim.here =
      fmt::format("the fixed part weighs as much as {:.0f} samples here, and as {:.0f} there",
                  fixed_in_samples([&](std::size_t batch) { return workspace + model->predicted(batch).total(); }),
                  fixed_in_samples(at.peak));
  return claim;
}

inline std::vector<Claim> claims_of(const std::vector<Model>& models, const Config& config, std::size_t smallest) {
  const std::size_t batch = config.batch;
  std::vector<Claim> claims;
  for (const Published& at : published()) {
    const auto alike = std::ranges::find_if(
        models, [&](const Model& model) { return model.mostly_activations(batch) == at.mostly_activations; });
    const Model* const model = alike == models.end() ? nullptr : &*alike;
    claims.push_back(cutting(at, model, config.workspace,
                             "cutting the batch from 32 to 8 cuts memory sharply",  // article 1
                             "share of the peak saved", 32, 8, at_least(0.5), saved));
    claims.push_back(cutting(at, model, config.workspace, "half the batch needs half the memory", "peak / peak", 32, 16,
                             between(0.45, 0.55), ratio));
  }
  const auto share_found = [](std::size_t largest) -> std::optional<double> {
    return ratio(double(std::bit_floor(largest)), double(largest));
  };
  claims.push_back({.text = "double the batch until it fails: the last one that fitted is the largest",  // article 1
                    .what = "last one that fitted / largest",
                    .range = exactly(1),
                    .size = "gpt2 with 1,024 tokens, the worst of cards with 8, 16, 24, 40, 80 GiB",
                    .at_size =
                        [=] {
                          const Published gpt2 = published().front();
                          double worst = 1;
                          for (const std::size_t gib : {8, 16, 24, 40, 80}) {
                            const auto too_large =
                                holds_from([&](std::size_t batch) { return gpt2.peak(batch) > gib << 30; });
                            worst = std::min(worst, share_found(*too_large - 1).value());
                          }
                          return worst;
                        },
                    .measure = [=](const Results& results) -> std::optional<double> {
                      for (const VariantResult& r : results)
                        if (r.largest_batch.value_or(0)) return share_found(*r.largest_batch);
                      return std::nullopt;
                    },
                    .here = "here the largest batch is a power of two"});
  for (const Model& model : models)
    claims.push_back({.text = "a smaller batch costs throughput: " + model.spec.name,
                      .about = About::time,
                      .what = fmt::format("samples/s at batch {} / at batch {}", smallest, batch),
                      .range = at_most(0.9),
                      .measure = [=](const Results& results) {
                        return results.ratio(model.row(smallest), model.row(batch), figures::speed);
                      }});
  return claims;
}

// ---------------------------------------------------------------------------------------------------- the findings

inline std::string key_of(const Model& model, const char* what) { return finding_key(model.spec.name + "_" + what); }

/// Finds a model's largest batch under the budget by trying, and checks it against the prediction.
inline void find_batch(Report& report, const data::Dataset& dataset, const Model& model,
                       std::optional<std::size_t> predicted) {
  const Config& config = report.config();
  if (config.budget == kUnlimited) return report.line("no budget, no largest batch");
  const Say say{config.chinese};
  Search search;
  std::optional<OutOfMemoryReport> fixed_part;
  Ledger ledger;
  try {
    with_context(config, config.budget, ledger, [&](Context& context) {
      ImageTraining training(context, dataset, model.spec, kOptimizer, 1);
      search = try_batches(kLargestTried, [&](std::size_t batch) {
        const std::size_t before = ledger.live_bytes();
        try {
          check_interrupt();
          training.try_batch(batch);
          context.synchronize();
        } catch (const OutOfMemory&) {
          report.check(ledger.live_bytes() == before, fmt::format("finder: batch {} leaked", batch));
          throw;
        }
      });
    });
  } catch (const OutOfMemory& error) {
    fixed_part = error.report();
  }
  if (fixed_part) {
    report.line(
        fmt::format("largest batch under {}: none, the fixed part alone does not fit", format_bytes(config.budget)));
    report.line("  " + oom_line(*fixed_part, config.chinese));
  } else {
    report.line(fmt::format("largest batch under {}: {}, found in {} trials", format_bytes(config.budget),
                            search.largest.batch, search.attempts.size()));
    if (search.largest.hit_limit) report.line("(no larger one is tried)");
    for (const auto& attempt : search.attempts)
      report.line(fmt::format("  batch {:>7}  {}", attempt.batch,
                              attempt.fits() ? say("fits", "放得下") : oom_line(*attempt.oom, say.chinese)));
  }
  // The prediction knows the budget only: when the device itself said no, the two may differ.
  bool only_the_budget = !fixed_part || fixed_part->by_limit;
  for (const auto& attempt : search.attempts) only_the_budget &= attempt.fits() || attempt.oom->by_limit;
  if (predicted && only_the_budget)
    report.check(search.largest.batch == std::min(*predicted, kLargestTried),
                 fmt::format("finder: {} found, {} predicted", search.largest.batch, *predicted));
  report.figure(key_of(model, "largest_batch_found"), double(search.largest.batch));
  report.figure(key_of(model, "finder_trials"), double(search.attempts.size()));
}

/// Below the table, for each model: the line through its peaks, and its largest batch.
inline void tell(const std::vector<Model>& models, const data::Dataset& dataset, const Results& results,
                 Report& report) {
  for (const Model& model : models) {
    const auto row = std::ranges::find_if(results, [&](const VariantResult& r) { return model.owns(r); });
    if (row == results.end()) continue;  // --filter left it out
    report.line(model.spec.name + ":");
    if (const auto fit = fit_peaks(model, results)) {
      report.line(fmt::format("peak = {} + {} x batch (the measured peaks are at most {:.0f} bytes off this line)",
                              format_bytes(std::size_t(std::llround(fit->fixed))),
                              format_bytes(std::size_t(std::llround(fit->slope))), fit->largest_residual));
      report.figure(key_of(model, "fit_fixed_bytes"), fit->fixed);
      report.figure(key_of(model, "fit_slope_bytes_a_sample"), fit->slope);
      report.figure(key_of(model, "fit_largest_residual_bytes"), fit->largest_residual);
    }
    find_batch(report, dataset, model, row->largest_batch);
    report.line("");
  }
}

}  // namespace oomlab::batch_reduction
