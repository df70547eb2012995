// Chapter 03, mixed precision: sixteen bits where they are enough.
//
// The problem   "Use FP16, it halves the memory." It halves some of it.
// The idea      Store weights, gradients and activations in 16 bits; keep an FP32 master copy of the weights, because
//               small updates vanish in FP16, and multiply the loss by a scale, because small gradients do.
// The bytes     per parameter: FP32 4 + 4 + 8 = 16; FP16 or BF16 with master weights 2 + 2 + 4 + 8 = 16. Not a byte
//               less. An activation: 4 becomes 2.
// Run it        build/host/bin/03_mixed_precision
//               build/host/bin/03_mixed_precision --plan --model bert-large

#include "claims.h"

namespace {

using namespace oomlab;
using namespace oomlab::mixed_precision;

// Losses agree to two percent, but for the failure.
Agreement agreement_of(Precision precision) {
  if (precision == Precision::pure_fp16) return differs_by_design("small gradients and small updates are lost");
  return {Agreement::Kind::within_tolerance, 2e-2, ""};
}

Chapter declare(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  const auto text = std::make_shared<data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const auto shares = std::make_shared<GradientShares>();
  const std::size_t seq = config.options[kSeq];
  const nn::StepForm form = form_of(config);

  Chapter chapter;
  chapter.title = "mixed precision";
  for (const Precision precision : {Precision::fp32, Precision::fp16, Precision::bf16, Precision::pure_fp16})
    chapter.variants.push_back({
        .name = name_of(precision),
        .batch = config.batch,
        .predicted = [=](std::size_t batch) { return predict_precision(spec, batch, seq, precision, form); },
        .agreement = agreement_of(precision),
        .make = [=](Context& context,
                    std::size_t batch) { return make_training(context, spec, *text, batch, precision, shares, form); },
        .flops = [=](std::size_t batch) { return flops_of_step(spec, batch, seq, {}, form); },
        .dtype = dtype_of(precision),
    });
  chapter.claims = claims_of(spec, shares);
  chapter.after = [=](const Results&, Report& report) {
    tell_gradients(*shares, report);
    // Every small tensor is rounded up, and master weights are one more of each.
    tell_categories(report, "categories_tiny", "gpt:1-1-8", 1, 1);
    tell_categories(report, "categories_large", "bert-large", kSizeBatch, kSizeSeq);
    overflow(report, spec, *text);
  };
  return chapter;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::size_t kMiB = std::size_t(1) << 20, kGiB = std::size_t(1) << 30;
  const Defaults huge{.batch = 1, .steps = 2, .budget = 80 * kGiB, .options = {{kSeq, 2048}}};
  const Defaults bert{.batch = 8,
                      .steps = 2,
                      .budget = 12 * kGiB,
                      .options = {{kSeq, 512}},
                      .published_models = kLargeTextModels,
                      .published = &huge};
  const Defaults gpt2{.batch = 8,
                      .steps = 2,
                      .budget = 12 * kGiB,
                      .options = {{kSeq, 1024}},
                      .published_models = "bert-base bert-large",
                      .published = &bert};
  const Defaults full{
      .model = "bytes-gpt",
      .batch = 16,
      .steps = 6,
      .budget = 80 * kMiB,
      .options = oomlab::plan::with_levers({{kSeq, 128}, kText, kModelConfig}, {"08_attention_and_loss"}),
      .models = kTextModels,
      .published_models = kGpt2Models,
      .published = &gpt2};
  const Defaults quick{.model = "gpt:2-2-32", .batch = 16, .steps = 3, .budget = 3 * kMiB, .options = {{kSeq, 32}}};
  return run_chapter(argc, argv, full, quick, declare);
}
