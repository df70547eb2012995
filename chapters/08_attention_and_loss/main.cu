// Chapter 08, attention and loss: activations that nobody needs.
//
// The problem   Two tensors make most people run out of memory: attention probabilities, B·H·S² of them in each layer,
//               and logits, B·S·V. Both are used at once, and then again in the backward pass.
// The idea      Neither has to exist. Scores come and go tile by tile, in both passes (tiled: through cuBLAS; fused: in
//               one kernel). Logits come and go by chunks of rows, with the loss and both gradients. And what is cheap
//               to compute again need not be kept (lean).
// The bytes     a layer of gpt keeps, in residuals R C:   textbook 16 + H S / C,   tiled 16,   lean 9.
//               logits R V at once, or a chunk of at most R C.       R = B S rows of width C, H heads.
// Run it        build/host/bin/08_attention_and_loss
//               build/host/bin/08_attention_and_loss --plan --model gpt2

#include "claims.h"

namespace oomlab::attention_and_loss {

using checkpointing::predict_schedule, checkpointing::solve_schedule;

static Chapter attention_and_loss(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  const auto text = std::make_shared<data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const auto observed = std::make_shared<Observed>();
  const Precision precision = precision_of(config);
  const std::size_t seq = config.options[kSeq], budget = config.budget, bytes = element_bytes(precision);
  const ByCategory resident = resident_with(spec, precision);
  const ByCategory always = checkpointing::with_workspace(resident, config);
  const auto schedule_of = [=](const Way& way, std::size_t batch) -> Schedule {
    if (way.solved)
      if (auto solved = solve_schedule(spec, bytes, batch, seq, budget, always, way.form)) return *solved;
    return {{spec.layers, false, way.form.keep}};
  };

  Chapter chapter{.title = "attention and loss", .variants = {}, .claims = claims_of(observed, precision), .after = {}};
  for (const Way& way : ways())
    chapter.variants.push_back(
        {.name = way.name,
         .batch = config.batch,
         .predicted =
             [=](std::size_t batch) {
               return predict_schedule(spec, bytes, batch, seq, schedule_of(way, batch), resident, way.form);
             },
         .agreement = {Agreement::Kind::within_tolerance, precision == Precision::fp32 ? 1e-5 : 2e-2, ""},
         .make =
             [=](Context& context, std::size_t batch) {
               if (way.form.attention == nn::AttentionForm::fused && spec.width / spec.heads > nn::kFusedDepth)
                 throw VariantSkipped(fmt::format("the fused kernel takes heads of up to {} values, not {}",
                                                  nn::kFusedDepth, spec.width / spec.heads));
               return with_element_of(precision, [&]<class T>(T) -> std::unique_ptr<Workload> {
                 return std::make_unique<FormTraining<T>>(context, spec, *text, batch, precision,
                                                          schedule_of(way, batch), way, *observed);
               });
             },
         .flops = [=](std::size_t batch) { return flops_of_step(spec, batch, seq, schedule_of(way, batch), way.form); },
         .dtype = dtype_of(precision)});
  chapter.after = [=](const Results& results, Report& report) {
    show_operations(results, report, spec, ways(), schedule_of, *observed);
    show_lengths(report);
  };
  return chapter;
}

}  // namespace oomlab::attention_and_loss

int main(int argc, char** argv) {
  using oomlab::Defaults, oomlab::DType;
  using namespace oomlab::train;
  const auto mib = [](double n) { return std::size_t(n * 1024 * 1024); };
  const Defaults large{
      .batch = 1, .steps = 2, .budget = mib(80 << 10), .options = {{kSeq, 2048}, {kPrecision, name_of(DType::bf16)}}};
  const Defaults bert{.batch = 8,
                      .steps = 4,
                      .budget = mib(8 << 10),
                      .options = {{kSeq, 512}, {kPrecision, name_of(DType::bf16)}},
                      .published_models = kLargeTextModels,
                      .published = &large};
  const Defaults gpt2{.batch = 8,
                      .steps = 4,
                      .budget = mib(4.5 * 1024),
                      .options = {{kSeq, 1024}, {kPrecision, name_of(DType::bf16)}},
                      .published_models = "bert-base bert-large",
                      .published = &bert};
  const Defaults full{.model = "gpt:4-4-128",
                      .batch = 4,
                      .steps = 4,
                      .budget = mib(80),
                      .options = {{kSeq, 512}, {kPrecision, name_of(DType::fp32)}, kText, kModelConfig},
                      .models = kTextModels,
                      .published_models = kGpt2Models,
                      .published = &gpt2};
  const Defaults quick{.model = "gpt:2-2-32", .batch = 4, .steps = 3, .budget = mib(4.25), .options = {{kSeq, 128}}};
  return oomlab::run_chapter(argc, argv, full, quick, oomlab::attention_and_loss::attention_and_loss);
}
