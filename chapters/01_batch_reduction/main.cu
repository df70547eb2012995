// Chapter 01, batch reduction: the first advice that everybody gives.
//
// The problem   The batch does not fit the budget.
// The idea      Activations are linear in the batch, so halve it until it fits, or let a finder search for the largest
//               batch that fits: doubling, then bisection, recovering from each out-of-memory on the way.
// The bytes     peak = fixed + slope x batch. Fixed: parameters, gradients, optimizer state, workspace, data.
//               Slope: the input, the label and the activations of one sample. The smaller the slope beside the fixed
//               part, the less a smaller batch helps. Both are fitted to the measurements, and printed.
// Run it        build/host/bin/01_batch_reduction
//               build/host/bin/01_batch_reduction --model mlp-small --budget 9MiB

#include <fmt/format.h>

#include <cmath>

#include "batch_finder.h"
#include "train/image_training.h"

namespace {

using namespace oomlab;
using namespace oomlab::train;

constexpr auto kOptimizer = nn::OptimizerKind::adamw;
constexpr std::size_t kVariants = 5;             // batch, batch/2, … batch/16
constexpr std::size_t kLargestTried = 1u << 20;  // where the finder stops asking for more

/// peak = fixed + slope x batch, both in bytes: the least-squares line through the measured peaks.
struct Fit {
  double fixed = 0, slope = 0, largest_residual = 0;
  double at(double batch) const { return fixed + slope * batch; }
};

std::optional<Fit> fit_peaks(const std::vector<VariantResult>& results) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const VariantResult& r : results) {
    if (!r.measured) continue;
    const auto batch = double(r.batch), peak = double(r.peak_allocated);
    n += 1, x += batch, y += peak, xx += batch * batch, xy += batch * peak;
  }
  if (n < 2) return std::nullopt;
  Fit fit;
  fit.slope = (n * xy - x * y) / (n * xx - x * x);
  fit.fixed = (y - fit.slope * x) / n;
  for (const VariantResult& r : results)
    if (r.measured)
      fit.largest_residual =
          std::max(fit.largest_residual, std::abs(double(r.peak_allocated) - fit.at(double(r.batch))));
  return fit;
}

void find_batch(Report& report, const data::Dataset& dataset, const nn::MlpSpec& spec,
                std::optional<std::size_t> predicted) {
  const Config& config = report.config();
  if (config.budget == kUnlimited) return report.line("finder: no budget, no largest batch");
  Search search;
  bool fixed_fits = true;
  Ledger ledger;
  try {
    with_context(config, config.budget, ledger, [&](Context& context) {
      ImageTraining training(context, dataset, spec, kOptimizer, 1);
      search = find_largest_batch(kLargestTried, [&](std::size_t batch) {
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
    fixed_fits = false;
    report.line(fmt::format("finder: not even the fixed part fits: {}", error.what()));
  }
  report.line(fmt::format("finder under {}:", format_bytes(config.budget)));
  for (const auto& attempt : search.attempts)
    report.line(fmt::format("  batch {:>7}  {}", attempt.batch, attempt.fits() ? "fits" : oom_line(*attempt.oom)));
  report.line(fmt::format("largest batch that fits: {}{}, in {} trials", search.largest,
                          search.hit_limit ? " (the most that is tried)" : "", search.attempts.size()));
  // The prediction knows the budget only: when the device itself said no, the two may differ.
  bool only_the_budget = true;
  for (const auto& attempt : search.attempts) only_the_budget &= attempt.fits() || attempt.oom->by_limit;
  if (predicted && only_the_budget && fixed_fits)
    report.check(search.largest == std::min(*predicted, kLargestTried),
                 fmt::format("finder: {} found, {} predicted", search.largest, *predicted));
  report.figure("largest_batch_found", double(search.largest));
  report.figure("finder_trials", double(search.attempts.size()));
}

Chapter batch_reduction(const Config& config) {
  const nn::MlpSpec spec = nn::parse_model(config.model);
  const auto dataset = std::make_shared<data::Dataset>(load_images(config, spec));

  Chapter chapter;
  chapter.title = "smaller batches";
  const auto predicted = [=](std::size_t batch) { return ImageTraining::predicted(*dataset, spec, kOptimizer, batch); };
  std::size_t batch = config.batch;
  for (std::size_t i = 0; i < kVariants && batch > 0; ++i, batch /= 2) {
    chapter.variants.push_back({
        .name = fmt::format("batch {}", batch),
        .batch = batch,
        .predicted = predicted,
        .agreement = differs_by_design(i == 1 ? "a gradient of fewer samples is another gradient" : ""),
        .make = [=](Context& context, std::size_t size) -> std::unique_ptr<Workload> {
          return std::make_unique<ImageTraining>(context, *dataset, spec, kOptimizer, size);
        },
    });
  }

  chapter.claims.push_back({"cutting the batch from 32 to 8 cuts memory sharply", "share of the peak saved, by the fit",
                            0.5, 0.75, [](const auto& results) -> std::optional<double> {
                              const auto fit = fit_peaks(results);
                              if (!fit) return std::nullopt;
                              return 1 - fit->at(8) / fit->at(32);
                            }});
  chapter.claims.push_back({"half the batch needs half the memory", "peak of the second row / peak of the first", 0.45,
                            0.55, [](const auto& results) -> std::optional<double> {
                              if (results.size() < 2 || !results[0].measured || !results[1].measured ||
                                  results[1].batch * 2 != results[0].batch)
                                return std::nullopt;
                              return double(results[1].peak_allocated) / double(results[0].peak_allocated);
                            }});
  chapter.claims.push_back({"a smaller batch costs throughput", "samples/s of the last row / of the first", 0, 0.9,
                            [](const auto& results) -> std::optional<double> {
                              const auto &first = results.front().samples_per_second,
                                         &last = results.back().samples_per_second;
                              if (first.empty() || last.empty() || results.size() < 2) return std::nullopt;
                              return median(last) / median(first);
                            }});

  chapter.after = [=](const std::vector<VariantResult>& results, Report& report) {
    if (const auto fit = fit_peaks(results)) {
      report.line(fmt::format("peak = {} + {} x batch (largest residual {:.0f} bytes, from rounding to {} bytes)",
                              format_bytes(std::size_t(std::llround(fit->fixed))),
                              format_bytes(std::size_t(std::llround(fit->slope))), fit->largest_residual, kGranule));
      report.figure("fit_fixed_bytes", fit->fixed);
      report.figure("fit_slope_bytes_a_sample", fit->slope);
      report.figure("fit_largest_residual_bytes", fit->largest_residual);
    }
    find_batch(report, *dataset, spec, results.front().largest_batch);
    report.line("");
  };
  return chapter;
}

}  // namespace

int main(int argc, char** argv) {
  const Defaults full{.model = "mlp", .batch = 512, .steps = 6, .budget = std::size_t(720) << 20};
  const Defaults quick{.model = "mlp-small", .batch = 128, .steps = 5, .budget = std::size_t(8704) << 10};
  return run_chapter(argc, argv, full, quick, batch_reduction);
}
