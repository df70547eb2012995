// Chapter 02, gradient accumulation: the large batch's gradient at the small batch's memory.
//
// The problem   The batch that trains well does not fit, and a smaller one trains differently.
// The idea      Split it into k micro-batches, add up their gradients, and let the optimizer step once.
// The bytes     peak = model state + activations of ONE micro-batch. Nothing is added where gradients stay allocated.
// The catch     The mean is over the targets of the whole batch. Averaging k means is another gradient.
// Run it        build/host/bin/02_gradient_accumulation
//               build/host/bin/02_gradient_accumulation --plan --model gpt2

#include "claims.h"

namespace {

using namespace oomlab;
using namespace oomlab::gradient_accumulation;

Agreement agreement_of(Way way) {
  switch (way) {
    case Way::full_batch: return {};
    case Way::global_count:
    case Way::one_backward: return {Agreement::Kind::within_tolerance, 1e-5, ""};
    case Way::mean_of_means:
      return differs_by_design("sequences have unequal numbers of tokens, and each micro-batch counts the same");
    case Way::no_zero_grad: return differs_by_design("each step adds to the gradients of all steps before");
    case Way::micro_batch_alone: return differs_by_design("a gradient of fewer samples is another gradient");
  }
  return {};
}

Chapter declare(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  const std::size_t micro_batch = config.options[kMicroBatch], seq = config.options[kSeq];
  if (config.batch % micro_batch != 0)
    throw UsageError(fmt::format("--micro-batch {} does not divide --batch {}", micro_batch, config.batch));
  const auto text = std::make_shared<data::TextSampler>(text_for(config, spec, /*ragged=*/true));
  const auto observed = std::make_shared<Observed>();
  const nn::StepForm form = form_of(config);

  Chapter chapter;
  chapter.title = "gradient accumulation";
  for (const Way way : {Way::full_batch, Way::global_count, Way::mean_of_means, Way::no_zero_grad, Way::one_backward,
                        Way::micro_batch_alone})
    chapter.variants.push_back({
        .name = name_of(way, config),
        .batch = way == Way::micro_batch_alone ? micro_batch : config.batch,
        .predicted =
            [=](std::size_t batch) { return Accumulation::predicted(spec, seq, batch, micro_batch, way, form); },
        .agreement = agreement_of(way),
        .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
          if (way == Way::one_backward) require_countable(batch / micro_batch);
          return std::make_unique<Accumulation>(context, spec, *text, batch, micro_batch, way, form, observed);
        },
        .flops = [=](std::size_t batch) -> std::optional<double> {
          const std::size_t at_once = way == Way::full_batch ? batch : micro_batch;
          const auto one = flops_of_step(spec, at_once, seq, {}, form);
          return one ? std::optional(*one * static_cast<double>(batch / at_once)) : std::nullopt;
        },
    });
  chapter.claims = claims_of(config, spec, text, observed);
  chapter.after = [=](const Results&, Report& report) {
    tell_gradients(*observed, report);
    tell_in_place(report);
    leak(report, spec, *text);
  };
  return chapter;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::size_t kMiB = std::size_t(1) << 20, kGiB = std::size_t(1) << 30;
  const Defaults huge{.batch = 64, .steps = 2, .budget = 80 * kGiB, .options = {{kMicroBatch, 1}, {kSeq, 2048}}};
  const Defaults bert{.batch = 64,
                      .steps = 2,
                      .budget = 16 * kGiB,
                      .options = {{kSeq, 512}},
                      .published_models = kLargeTextModels,
                      .published = &huge};
  const Defaults gpt2{.batch = 64,
                      .steps = 2,
                      .budget = 16 * kGiB,
                      .options = {{kSeq, 1024}},
                      .published_models = "bert-base bert-large",
                      .published = &bert};
  const Defaults full{.model = "bytes-gpt",
                      .batch = 32,
                      .steps = 5,
                      .budget = 96 * kMiB,
                      .options = oomlab::plan::with_levers({{kMicroBatch, 4}, {kSeq, 128}, kText, kModelConfig},
                                                           {"08_attention_and_loss"}),
                      .models = kTextModels,
                      .published_models = kGpt2Models,
                      .published = &gpt2};
  const Defaults quick{.model = "gpt:2-2-32", .batch = 16, .steps = 3, .budget = 2 * kMiB, .options = {{kSeq, 32}}};
  return run_chapter(argc, argv, full, quick, declare);
}
