// Chapter 03, mixed precision: sixteen bits where they are enough.
//
// The problem   "Use FP16, it halves the memory." It halves some of it.
// The idea      Store weights, gradients and activations in 16 bits; keep an FP32 master copy of the weights, because
//               small updates vanish in FP16, and multiply the loss by a scale, because small gradients do.
// The bytes     a parameter: FP32 4 + 4 + 8 = 16; FP16 or BF16 with master weights 2 + 2 + 4 + 8 = 16. Not a byte less.
//               an activation: 4 becomes 2.
// Run it        build/host/bin/03_mixed_precision
//               build/host/bin/03_mixed_precision --plan --model bert-large --batch 8 --seq 512 --budget 16GiB

#include "precision.h"

namespace {

using namespace oomlab;
using namespace oomlab::mixed_precision;
using namespace oomlab::train;

constexpr Precision kAll[] = {Precision::fp32, Precision::fp16, Precision::bf16, Precision::pure_fp16};

// Where the saving is and where it is not, in closed form (which the table above checks). Without the workspace, which
// is the same for both.
void by_category(Report& report, const char* model, std::size_t batch, std::size_t seq) {
  const nn::TransformerSpec spec = nn::parse_transformer(model);
  report.line(fmt::format("{}, batch {}, seq {}: {:.4g} million parameters", model, batch, seq,
                          double(spec.parameters()) / 1e6));
  report.line(fmt::format("  {:<6}{:>13}{:>13}{:>13}{:>13}{:>13}", "", "parameters", "gradients", "optimizer",
                          "activations", "together"));
  std::size_t fp32 = 0;
  for (const Precision precision : {Precision::fp32, Precision::fp16}) {
    ByCategory bytes = predict_precision(spec, batch, seq, precision);
    bytes[Category::workspace] = bytes[Category::data] = 0;
    const auto cell = [&](Category c) { return format_bytes(bytes[c]); };
    if (precision == Precision::fp32) fp32 = bytes.total();
    report.line(fmt::format("  {:<6}{:>13}{:>13}{:>13}{:>13}{:>13}  {:+.1f} %", name_of(precision),
                            cell(Category::parameters), cell(Category::gradients), cell(Category::optimizer),
                            cell(Category::activations), format_bytes(bytes.total()),
                            100 * (double(bytes.total()) / double(fp32) - 1)));
  }
}

// Twelve steps with a short growth interval; in the sixth a gradient becomes infinite.
void overflow(Report& report, const nn::TransformerSpec& spec, const data::TextSampler& text) {
  if (planning()) return;
  constexpr std::uint32_t kGrowth = 3, kSteps = 12, kBad = 6;
  Ledger ledger;
  std::string scales;
  bool unchanged = false, halved = false, grew_back = false;
  std::uint64_t steps = 0;
  with_context(report.config(), kUnlimited, ledger, [&](Context& context) {
    nn::Transformer<__half> model(context, spec, kTextSeed);
    nn::MixedAdamW<__half> optimizer(context, model.parameters(), {}, nn::LossScaling::dynamic_from(1024, kGrowth));
    float last = 1024;
    for (std::uint32_t step = 1; step <= kSteps; ++step) {
      check_interrupt();
      model.forward_backward(context, upload(context, text.samples(step, 1), 0, 1), {}, optimizer.scale_on_device());
      const std::uint64_t before = model.fingerprint(context), done = optimizer.state(context).steps;
      if (step == kBad) {
        const std::uint16_t infinity = 0x7c00;
        CUDA_CHECK(cudaMemcpyAsync(model.parameters().back().gradient, &infinity, sizeof infinity,
                                   cudaMemcpyHostToDevice, context.stream()));
      }
      optimizer.step(context);
      const nn::ScaleState now = optimizer.state(context);
      if (step == kBad)
        unchanged = model.fingerprint(context) == before && now.steps == done, halved = now.scale == last / 2;
      if (step == kSteps) grew_back = now.scale >= last, steps = now.steps;
      scales += fmt::format(" {:g}{}", now.scale, step == kBad ? "!" : "");
      last = now.scale;
    }
  });
  report.line(fmt::format("loss scale after each of {} steps, a gradient made infinite in step {} (!):{}", kSteps, kBad,
                          scales));
  report.check(unchanged, "the step with an infinite gradient changed a weight or was counted");
  report.check(halved, "the overflow did not halve the loss scale");
  report.check(grew_back && steps == kSteps - 1, "the loss scale did not grow back");
}

// Losses agree to two percent, but for the failure.
Agreement agreement_of(Precision precision) {
  if (precision == Precision::pure_fp16) return differs_by_design("small gradients and small updates are lost");
  Agreement agreement;
  agreement.kind = Agreement::Kind::within_tolerance;
  agreement.tolerance = 2e-2;
  return agreement;
}

double state_bytes(const VariantResult& v) {
  return double(v.at_peak[Category::parameters] + v.at_peak[Category::gradients] + v.at_peak[Category::optimizer]);
}

Chapter mixed_precision(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  const auto text = std::make_shared<data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const auto shares = std::make_shared<GradientShares>();
  const std::size_t seq = config.seq;

  Chapter chapter;
  chapter.title = "mixed precision";
  for (const Precision precision : kAll)
    chapter.variants.push_back({
        .name = name_of(precision),
        .batch = config.batch,
        .predicted = [=](std::size_t batch) { return predict_precision(spec, batch, seq, precision); },
        .agreement = agreement_of(precision),
        .make = [=](Context& context,
                    std::size_t batch) { return make_training(context, spec, *text, batch, precision, shares); },
    });

  using Results = std::vector<VariantResult>;
  // A figure of FP16 over the same figure of FP32, where both were measured.
  const auto ratio = [](const Results& r, auto figure) -> std::optional<double> {
    if (r.size() != std::size(kAll) || !r[0].measured || !r[1].measured) return std::nullopt;
    return figure(r[1]) / figure(r[0]);
  };
  const auto flushed = [shares](Precision precision) -> std::optional<double> {
    const auto found = shares->flushed.find(precision);
    return found == shares->flushed.end() ? std::nullopt : std::optional(found->second);
  };
  chapter.claims = {
      {"mixed precision saves 30 to 50 % of the memory", "share of the peak saved by fp16", 0.3, 0.5,
       [=](const Results& r) {
         const auto peak = ratio(r, [](const VariantResult& v) { return double(v.peak_allocated); });
         return peak ? std::optional(1 - *peak) : peak;
       }},
      {"FP16 halves the activations", "activation bytes at the peak, fp16 / fp32", 0.49, 0.51,
       [=](const Results& r) {
         return ratio(r, [](const VariantResult& v) { return double(v.at_peak[Category::activations]); });
       }},
      {"FP16 halves weights, gradients and optimizer state", "their bytes, fp16 / fp32", 0.45, 0.55,
       [=](const Results& r) { return ratio(r, state_bytes); }},
      {"training with AMP needs 18 bytes a parameter", "bytes of weights, gradients and optimizer, a parameter", 17.5,
       18.5,
       [=](const Results& r) -> std::optional<double> {
         if (r.size() != std::size(kAll) || !r[1].measured) return std::nullopt;
         return state_bytes(r[1]) / double(spec.parameters());
       }},
      {"mixed precision is 20 to 50 % faster", "samples/s, fp16 / fp32", 1.2, 1.5,
       [=](const Results& r) -> std::optional<double> {
         // A processor without FP16 arithmetic converts; its times say nothing about tensor cores.
         if (std::string(backend_name()) == "host" || r.size() != std::size(kAll)) return std::nullopt;
         if (r[0].samples_per_second.empty() || r[1].samples_per_second.empty()) return std::nullopt;
         return median(r[1].samples_per_second) / median(r[0].samples_per_second);
       }},
      {"FP16 without a loss scale loses gradients", "share of the gradients flushed to zero", 0.001, 1,
       [=](const Results&) { return flushed(Precision::pure_fp16); }},
      {"a loss scale brings them back", "share of the gradients flushed to zero", 0, 0.0001,
       [=](const Results&) { return flushed(Precision::fp16); }},
      {"BF16 needs no loss scale", "share of the gradients flushed to zero", 0, 0.0001,
       [=](const Results&) { return flushed(Precision::bf16); }},
  };

  chapter.after = [=](const Results&, Report& report) {
    for (const auto& [precision, share] : shares->flushed)
      report.line(fmt::format("{}: {:.2g} of the first gradients are flushed to zero", name_of(precision), share));
    if (!shares->nonzero_in_fp32.empty())
      report.line(fmt::format("in fp32, {:.2g} of them are below FP16's smallest normal number, where bits are lost",
                              shares->below_normal));
    by_category(report, "gpt:1-1-8", 1,
                1);  // every small tensor is rounded up, and master weights are one more of each
    by_category(report, "bert-large", 8, 512);
    overflow(report, spec, *text);
    report.line("");
  };
  return chapter;
}

}  // namespace

int main(int argc, char** argv) {
  const Defaults full{.model = "bytes-gpt", .batch = 16, .steps = 6, .budget = std::size_t(80) << 20, .seq = 128};
  const Defaults quick{.model = "gpt:2-2-32", .batch = 16, .steps = 3, .budget = std::size_t(11) << 20, .seq = 32};
  return run_chapter(argc, argv, full, quick, mixed_precision);
}
