// Chapter 02, gradient accumulation: the large batch's gradient at the small batch's memory.
//
// The problem   The batch that trains well does not fit, and a smaller one trains differently.
// The idea      Split it into k micro-batches, add up their gradients, and let the optimizer step once.
// The bytes     peak = model state + activations of ONE micro-batch. Nothing is added where gradients stay allocated.
// The catch     The mean is over the targets of the whole batch. Averaging k means is another gradient.
// Run it        build/host/bin/02_gradient_accumulation
//               build/host/bin/02_gradient_accumulation --model gpt2 --batch 64 --micro-batch 4 --seq 1024 --plan

#include "leak.h"
#include "ways.h"

namespace {

using namespace oomlab;
using namespace oomlab::gradient_accumulation;
using namespace oomlab::train;

// Validation steps whose losses are kept, each with its forward pass, until memory runs out.
void leak(Report& report, const nn::TransformerSpec& spec, const data::TextSampler& text) {
  const Config& config = report.config();
  const std::size_t held_bytes = HeldForward::bytes(spec, config.micro_batch, config.seq).total();
  constexpr std::size_t kMost = 16;
  Ledger ledger;
  std::size_t steps = 0;
  report.line(fmt::format("losses kept with their graphs: {} a step are held", format_bytes(held_bytes)));
  try {
    with_context(config, config.budget, ledger, [&](Context& context) {
      nn::Transformer<float> model(context, spec, kTextSeed);
      const nn::AdamW optimizer(context, model.parameters());
      std::vector<HeldForward> losses;
      for (; steps < kMost; ++steps) {
        check_interrupt();
        const std::size_t before = ledger.live_bytes();
        losses.emplace_back(context, model,
                            upload(context, text.samples(steps, config.micro_batch), 0, config.micro_batch));
        report.line(fmt::format("  step {:>2}: {} live", steps + 1, format_bytes(ledger.live_bytes())));
        report.check(ledger.live_bytes() - before == held_bytes, "a held step is not as predicted");
      }
    });
  } catch (const OutOfMemory& error) {
    report.line(fmt::format("  step {:>2}: {}", steps + 1, oom_line(error.report())));
  }
  report.line("");
  report.figure("held_bytes_a_step", double(held_bytes));
  report.figure("steps_held", double(steps));
}

Chapter gradient_accumulation(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  if (config.batch % config.micro_batch != 0)
    throw UsageError(fmt::format("--micro-batch {} does not divide --batch {}", config.micro_batch, config.batch));
  const auto text = std::make_shared<data::TextSampler>(text_for(config, spec, /*ragged=*/true));
  const auto gradients = std::make_shared<Gradients>();
  const std::size_t micro_batch = config.micro_batch, seq = config.seq;
  const std::size_t k = config.batch / micro_batch;

  Chapter chapter;
  chapter.title = "gradient accumulation";
  const auto add = [&](std::string name, Way way, Agreement agreement) {
    chapter.variants.push_back({
        .name = std::move(name),
        .batch = way == Way::micro_batch_alone ? micro_batch : config.batch,
        .predicted = [=](std::size_t batch) { return Accumulation::predicted(spec, seq, batch, micro_batch, way); },
        .agreement = std::move(agreement),
        .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
          return std::make_unique<Accumulation>(context, spec, *text, batch, micro_batch, way, gradients);
        },
    });
  };
  const Agreement same{Agreement::Kind::within_tolerance, 1e-5, ""};
  add(fmt::format("full batch {}", config.batch), Way::full_batch, {});
  add(fmt::format("{} x {}, global count", k, micro_batch), Way::global_count, same);
  add(fmt::format("{} x {}, mean of means", k, micro_batch), Way::mean_of_means,
      differs_by_design("sequences have unequal numbers of tokens, and each micro-batch counts the same"));
  add(fmt::format("{} x {}, no zero_grad", k, micro_batch), Way::no_zero_grad,
      differs_by_design("each step adds to the gradients of all steps before"));
  add(fmt::format("{} x {}, one backward", k, micro_batch), Way::one_backward, same);
  add(fmt::format("batch {} alone", micro_batch), Way::micro_batch_alone,
      differs_by_design("a gradient of fewer samples is another gradient"));

  using Results = std::vector<VariantResult>;
  const auto peaks = [](const Results& results, Way a, Way b) -> std::optional<double> {
    const auto i = std::size_t(a), j = std::size_t(b);
    if (results.size() != 6 || !results[i].measured || !results[j].measured) return std::nullopt;
    return double(results[i].peak_allocated) / double(results[j].peak_allocated);
  };
  const auto difference = [gradients](Way way) -> std::optional<double> {
    const auto& all = gradients->difference[way];
    return all.empty() ? std::nullopt : std::optional(all[0]);
  };
  chapter.claims = {
      {"gradient accumulation costs no memory", "peak / peak of the micro-batch alone", 1, 1,
       [=](const Results& r) { return peaks(r, Way::global_count, Way::micro_batch_alone); }},
      {"accumulated gradients equal the large batch's", "relative L2 difference, divided by the global count", 0, 1e-6,
       [=](const Results&) { return difference(Way::global_count); }},
      {"dividing each micro-batch's loss by k is enough", "relative L2 difference, mean of means", 0, 1e-6,
       [=](const Results&) { return difference(Way::mean_of_means); }},
      {"forgetting zero_grad makes memory grow until OOM", "peak / peak with zero_grad", 1.05, 1e9,
       [=](const Results& r) { return peaks(r, Way::no_zero_grad, Way::global_count); }},
      {"summing the losses and calling backward once is the same", "peak / peak with a backward each", 1, 1.05,
       [=](const Results& r) { return peaks(r, Way::one_backward, Way::global_count); }},
      {"losses held with their graphs are what leaks", "extra peak of one backward / bytes held", 1, 1,
       [=](const Results& r) -> std::optional<double> {
         if (!peaks(r, Way::one_backward, Way::global_count) || k == 1) return std::nullopt;
         const std::size_t extra =
             r[std::size_t(Way::one_backward)].peak_allocated - r[std::size_t(Way::global_count)].peak_allocated;
         return double(extra) / double((k - 1) * HeldForward::bytes(spec, micro_batch, seq).total());
       }},
      {"many small passes take as long as a large one", "samples/s of the micro-batches / of the full batch", 0.95,
       1.05, [](const Results& r) -> std::optional<double> {
         if (r.size() != 6 || r[0].samples_per_second.empty() || r[1].samples_per_second.empty()) return std::nullopt;
         return median(r[1].samples_per_second) / median(r[0].samples_per_second);
       }}};

  chapter.after = [=](const Results&, Report& report) {
    for (const auto& [way, differences] : gradients->difference) {
      if (way == Way::full_batch || differences.empty()) continue;
      const std::string& name = chapter.variants[std::size_t(way)].name;
      report.line(fmt::format("{}: gradient off by {:.2g} in step 1 (relative L2), {:.2f} times as long in step {}",
                              name, differences[0], gradients->norm_ratio[way].back(), differences.size()));
      if (way == Way::global_count || way == Way::one_backward)
        report.check(differences[0] <= 1e-6, fmt::format("{}: the gradient is off by {}", name, differences[0]));
    }
    leak(report, spec, *text);
  };
  return chapter;
}

}  // namespace

int main(int argc, char** argv) {
  const Defaults full{
      .model = "bytes-gpt", .batch = 32, .steps = 6, .budget = std::size_t(96) << 20, .seq = 128, .micro_batch = 4};
  const Defaults quick{
      .model = "gpt:2-2-32", .batch = 16, .steps = 3, .budget = std::size_t(10) << 20, .seq = 32, .micro_batch = 4};
  return run_chapter(argc, argv, full, quick, gradient_accumulation);
}
