// Chapter 04, checkpointing: compute again what you did not keep.
//
// The problem   Activations of all layers wait for the backward pass, each of them for a moment of use.
// The idea      Keep some, compute the others again. Which ones? Every layer's input alone; the inputs of sqrt(L)
//               segments; everything but what is cheap (norms, GELU) or large (attention probabilities); or what a
//               budget allows.
// The bytes     everything: L (16 R C + B H S^2) elements.  Every layer: L R C, and one layer.
//               sqrt(L) segments: sqrt(L) R C, and sqrt(L) layers.       R = B S rows of width C.
// Run it        build/host/bin/04_checkpointing
//               build/host/bin/04_checkpointing --plan --model bert-large --precision fp16 --budget 12GiB

#include "claims.h"
#include "plan/lever/attention.h"
#include "plan/lever/loss.h"
#include "training.h"

namespace oomlab::checkpointing {

static Chapter checkpointing(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  const auto text = std::make_shared<data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const auto counted = std::make_shared<Counted>();
  const Precision precision = precision_of(config);
  const nn::StepForm form = form_of(config);  // of the attention and the loss; what is kept is this chapter's question
  const std::size_t layers = spec.layers, seq = config.options[train::kSeq], budget = config.budget,
                    bytes = element_bytes(precision);
  const ByCategory resident = resident_with(spec, precision);
  const ByCategory always = with_workspace(resident, config);

  // A schedule by name, for a batch size (the solved one depends on it).
  const Ways ways = {
      {"none", [=](std::size_t) { return keep_everything(layers); }},
      {kEveryLayer, [=](std::size_t) { return recompute_segments(layers, 1); }},
      {"sqrt(L) segments", [=](std::size_t) { return recompute_segments(layers, root_of(layers)); }},
      {"norms and GELU", [=](std::size_t) { return keep_selected(layers, {.norms = false, .gelu = false}); }},
      {"probabilities", [=](std::size_t) { return keep_selected(layers, {.probabilities = false}); }},
      {"solved", [=](std::size_t batch) {
         const auto solved = solve_schedule(spec, bytes, batch, seq, budget, always, form);
         return solved ? *solved : recompute_segments(layers, 1);  // nothing fits: out of memory will say so
       }}};

  Chapter chapter{.title = "checkpointing", .variants = {}, .claims = claims_of(counted), .after = {}};
  const auto add = [&](const std::string& name, const Way& schedule_for, bool on_host) {
    const auto step = [=](std::size_t batch) { return step_of(bytes, batch, seq, schedule_for(batch), form, on_host); };
    chapter.variants.push_back(
        {.name = name,
         .batch = config.batch,
         .predicted = [=](std::size_t batch) { return nn::simulate_step(spec, step(batch), resident).at_peak; },
         .agreement = {},  // bit-equal
         .make =
             [=](Context& context, std::size_t batch) {
               return with_element_of(precision, [&]<class T>(T) -> std::unique_ptr<Workload> {
                 return std::make_unique<Checkpointed<T>>(context, spec, *text, precision, step(batch),
                                                          (*counted)[name]);
               });
             },
         .flops = [=](std::size_t batch) { return flops_of_step(spec, batch, seq, schedule_for(batch), form); },
         .dtype = dtype_of(precision),
         .predicted_on_host = [=](std::size_t batch) { return nn::host_bytes(spec, step(batch)); }});
  };
  for (const auto& [name, schedule_for] : ways) {
    add(name, schedule_for, false);
    if (name == kEveryLayer) add(kOnHost, schedule_for, true);
  }
  chapter.after = [=](const Results& results, Report& report) {
    show_operations(results, report, spec, form, ways, *counted);
    frontier(report, spec, precision, form, always);
  };
  return chapter;
}

}  // namespace oomlab::checkpointing

int main(int argc, char** argv) {
  using oomlab::Defaults, oomlab::DType;
  using namespace oomlab::train;
  const auto mib = [](double n) { return std::size_t(n * 1024 * 1024); };
  const Defaults huge{
      .batch = 1, .steps = 6, .budget = mib(80 << 10), .options = {{kSeq, 2048}, {kPrecision, name_of(DType::bf16)}}};
  const Defaults large{.batch = 16,
                       .steps = 6,
                       .budget = mib(24 << 10),
                       .options = {{kSeq, 512}},
                       .published_models = kLargeTextModels,
                       .published = &huge};
  const Defaults full{.model = "gpt:9-4-128",
                      .batch = 8,
                      .steps = 6,
                      .budget = mib(66),
                      .options = {{kSeq, 128},
                                  {kPrecision, name_of(DType::fp32)},
                                  kText,
                                  kModelConfig,
                                  oomlab::plan::lever::kAttention,
                                  oomlab::plan::lever::kLoss},
                      .models = kTextModels,
                      .published_models = kGpt2AndBertModels,
                      .published = &large};
  const Defaults quick{.model = "gpt:4-2-32", .batch = 16, .steps = 3, .budget = mib(4.25), .options = {{kSeq, 32}}};
  return oomlab::run_chapter(argc, argv, full, quick, oomlab::checkpointing::checkpointing);
}
