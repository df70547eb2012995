#pragma once
// What is said about gradient accumulation, put to the test, and what the chapter shows beside its table.

#include <algorithm>
#include <cmath>
#include <memory>

#include "in_place.h"
#include "ways.h"

namespace oomlab::gradient_accumulation {

/// The size at which claims about memory are judged.
inline constexpr const char* kSize = "gpt2, batch 64 x 1,024 in micro-batches of 4";
inline ByCategory bytes_at_size(Way way) {
  return Accumulation::predicted(nn::parse_transformer("gpt2"), 1024, 64, 4, way);
}

/// Fewest and most targets of a micro-batch in the first step.
inline std::pair<std::size_t, std::size_t> targets_of_micro_batches(const Config& config,
                                                                    const data::TextSampler& text) {
  const std::size_t micro_batch = config.options[kMicroBatch];
  std::size_t fewest = SIZE_MAX, most = 0;
  for (std::size_t first = 0; first < config.batch; first += micro_batch) {
    const std::size_t targets = text.samples(first, micro_batch).targets();
    fewest = std::min(fewest, targets), most = std::max(most, targets);
  }
  return {fewest, most};
}

/// How far two FP32 sums of the same terms may be apart, relative L2, because they are added in another order: rounding
/// errors of half a unit each, 6e-8, grow like the square root of how many terms there are. (Higham, "Accuracy and
/// Stability of Numerical Algorithms", section 4.2.) The terms of a weight's gradient are the positions of the batch.
inline double rounding(const Config& config) {
  return std::max(1e-6, 6e-8 * std::sqrt(double(config.batch * config.options[kSeq])));
}

inline std::vector<Claim> claims_of(const Config& config, const nn::TransformerSpec& spec,
                                    const std::shared_ptr<data::TextSampler>& text,
                                    const std::shared_ptr<Observed>& observed) {
  const std::size_t micro_batch = config.options[kMicroBatch], seq = config.options[kSeq],
                    k = config.batch / micro_batch;
  const auto peaks_at_size = [](Way a, Way b) {
    return [=] { return ratio(double(bytes_at_size(a).total()), double(bytes_at_size(b).total())); };
  };
  const auto peaks = [=](Way a, Way b) {
    return [=](const Results& r) { return r.ratio(name_of(a, config), name_of(b, config), figures::peak); };
  };
  const auto first_of = [](const auto& all, Way way) -> std::optional<double> {
    const auto found = all.find(way);
    return found == all.end() || found->second.empty() ? std::nullopt : std::optional(found->second[0]);
  };
  const auto off = [=](Way way) { return [=](const Results&) { return first_of(observed->difference, way); }; };

  return {
      {.text = "gradient accumulation costs no memory",
       .what = "peak / peak of the micro-batch alone (gradients stay allocated in both)",
       .range = exactly(1),
       .size = kSize,
       .at_size = peaks_at_size(Way::global_count, Way::micro_batch_alone),
       .measure = peaks(Way::global_count, Way::micro_batch_alone)},
      {.text = "accumulated gradients equal the large batch's",
       .about = About::numbers,
       .what = "relative L2 difference, divided by the global count",
       .range = at_most(rounding(config)),
       .measure = off(Way::global_count)},
      {.text = "dividing each micro-batch's loss by k is enough",  // article 17
       .about = About::numbers,
       .what = "relative L2 difference, mean of means",
       .range = at_most(rounding(config)),
       .measure = off(Way::mean_of_means),
       .holds_where =
           [=] {
             const auto [fewest, most] = targets_of_micro_batches(config, *text);
             return fmt::format("holds where all micro-batches have equally many targets (here {} to {})", fewest,
                                most);
           }},
      {.text = "the division can be left out",  // article 17
       .about = About::numbers,
       .what = "length of the undivided gradient, k times the mean of means, / of the large batch's",
       .range = between(0.95, 1.05),
       .measure = [=](const Results&) -> std::optional<double> {
         const auto divided = first_of(observed->length, Way::mean_of_means);
         return divided ? std::optional(double(k) * *divided) : divided;
       }},
      {.text = "forgetting zero_grad makes memory grow until OOM",  // article 17
       .what = "peak / peak with zero_grad",
       .range = at_least(1.05),
       .size = kSize,
       .at_size = peaks_at_size(Way::no_zero_grad, Way::global_count),
       .measure = peaks(Way::no_zero_grad, Way::global_count)},
      {.text = "summing the losses and calling backward once costs the same memory",
       .what = "peak / peak with a backward pass each",
       .range = at_most(1.05),
       .size = kSize,
       .at_size = peaks_at_size(Way::one_backward, Way::global_count),
       .measure = peaks(Way::one_backward, Way::global_count)},
      {.text = "a step's graph stays in memory until somebody frees it",  // article 13
       .what = "max bytes allocated after a step / before the first, if nobody holds a loss",
       .range = at_least(1.05),
       .measure = [=](const Results&) -> std::optional<double> {
         const auto found = observed->live_after_a_step.find(Way::global_count);
         return found == observed->live_after_a_step.end() || found->second == 0 ? std::nullopt
                                                                                 : std::optional(found->second);
       }},
      {.text = "losses held with their graphs are what leaks",  // article 13
       .what = "bytes that one backward needs more / bytes of the held forward passes",
       .range = exactly(1),
       .measure = [=](const Results& r) -> std::optional<double> {
         const auto one = r.value(name_of(Way::one_backward, config), figures::peak),
                    each = r.value(name_of(Way::global_count, config), figures::peak);
         if (!one || !each || k == 1) return std::nullopt;
         return (*one - *each) / double((k - 1) * HeldForward::bytes(spec, micro_batch, seq).total());
       }},
      {.text = "an in-place operation before the backward pass causes OOM",  // article 13
       .what = "peak of an activation function and its backward pass, in place / beside its input",
       .range = at_least(1.05),
       .measure = [=](const Results&) { return std::optional(in_place(config, nn::Activation::gelu).bytes); }},
      {.text = "many small passes take as long as a large one",
       .about = About::time,
       .what = "samples/s of the micro-batches / of the full batch",
       .range = at_least(0.95),
       .measure =
           [=](const Results& r) {
             return r.ratio(name_of(Way::global_count, config), name_of(Way::full_batch, config), figures::speed);
           }},
  };
}

/// How far each gradient is from the large batch's.
inline void tell_gradients(const Observed& observed, Report& report) {
  for (const auto& [way, differences] : observed.difference) {
    if (way == Way::full_batch || differences.empty()) continue;
    const std::string name = name_of(way, report.config());
    report.line(
        fmt::format("{}: gradient off by {:.2g} in step 1 (relative L2), its length {:.2f} times the large "
                    "batch's in step {}",
                    name, differences[0], observed.length.at(way).back(), differences.size()));
    if (way == Way::global_count || way == Way::one_backward)
      report.check(differences[0] <= rounding(report.config()),
                   fmt::format("{}: the gradient is off by {}", name, differences[0]));
  }
}

/// An activation function that overwrites its input.
inline void tell_in_place(Report& report) {
  for (const nn::Activation activation : {nn::Activation::relu, nn::Activation::gelu}) {
    const InPlace result = in_place(report.config(), activation);
    const bool relu = activation == nn::Activation::relu;
    const char* const name = relu ? "ReLU" : "GELU";
    report.line(planning() ? fmt::format("{} in place: {:.0f} % of the bytes", name, 100 * result.bytes)
                           : fmt::format("{} in place: {:.0f} % of the bytes, gradient off by {:.2g}", name,
                                         100 * result.bytes, result.difference));
    report.figure(relu ? "relu_in_place_bytes" : "gelu_in_place_bytes", result.bytes);
    if (planning()) continue;
    report.figure(relu ? "relu_in_place_difference" : "gelu_in_place_difference", result.difference);
    report.check(relu == (result.difference == 0), "in place: ReLU's gradient must be the same, and GELU's another");
  }
}

/// Validation steps whose losses are kept, each with its forward pass, until memory runs out.
inline void leak(Report& report, const nn::TransformerSpec& spec, const data::TextSampler& text) {
  const Config& config = report.config();
  const std::size_t micro_batch = config.options[kMicroBatch];
  const std::size_t held_bytes = HeldForward::bytes(spec, micro_batch, config.options[kSeq]).total();
  constexpr std::size_t kMost = 16;
  GrowthDetector detector(config.budget);
  Ledger ledger;
  ledger.set_observer(&detector);
  std::size_t steps = 0;
  report.line(fmt::format("losses kept with their graphs: {} more in each step", format_bytes(held_bytes)));
  try {
    with_context(config, config.budget, ledger, [&](Context& context) {
      nn::Transformer<float> model(context, spec, kTextSeed);
      const nn::Optimizer<float> optimizer(context, model.parameters());
      std::vector<HeldForward> losses;
      Loop loop(ledger, "step");
      for (; steps < kMost; ++steps) {
        check_interrupt();
        const std::size_t before = ledger.live_bytes();
        losses.emplace_back(context, model, upload(context, text.samples(steps, micro_batch), 0, micro_batch));
        report.line(fmt::format("  step {:>2}: {} live", steps + 1, format_bytes(ledger.live_bytes())));
        report.check(ledger.live_bytes() - before == held_bytes, "a held step is not as predicted");
        loop.end_round();
      }
    });
  } catch (const OutOfMemory& error) {
    report.line(fmt::format("  step {:>2}: {}", steps + 1, oom_line(error.report(), config.chinese)));
  }
  const std::vector<Growth> growths = detector.growths();
  for (const Growth& growth : growths) report.line("  " + describe(growth, config.budget, config.chinese));
  report.check(steps < kStepsForGrowth || (growths.size() == 1 && growths[0].found_in == kStepsForGrowth &&
                                           growths[0].bytes_a_round == double(held_bytes) && !growths[0].tags.empty()),
               "the leak is not found in the tenth step");
  report.line("");
  report.figure("held_bytes_a_step", double(held_bytes));
  report.figure("steps_held", double(steps));
}

}  // namespace oomlab::gradient_accumulation
