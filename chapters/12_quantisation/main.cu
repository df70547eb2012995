// Chapter 12, quantisation: fewer bits per weight.
//
// The problem   In inference a model is mostly weights, and they do not fit. Every token reads all of them.
// The idea      Store them in 8 or 4 bits, with a scale for each row or group. Multiply the codes as they are: make
//               weights in registers, a few at a time, and never the matrix.
// The bytes     of n weights in r rows. INT8: n + 4 r. INT4 in groups of g: n/2 + 2.5 n/g. NF4: n/2 + n/64 + n/4096
//               and 4 more. What is not quantised stays at 4 or 2 bytes: norms, embedding, head, activations, cache.
// Run it        build/host/bin/12_quantisation
//               build/host/bin/12_quantisation --plan --model llama-3.1-8b

#include "claims.h"

namespace oomlab::quantisation {
namespace {

Agreement agreement_of(const ModelFormat& model) {
  if (model.linear.scheme == Scheme::as_is && model.rest == DType::fp32) return {};  // bit-equal
  return differs_by_design("weights of fewer bits");
}

Chapter declare(const Config& config) {
  check_files_to_save(config);
  const nn::TransformerSpec spec = decoder_of(config);
  const auto source = std::make_shared<const Source>(spec, config.options.find(kWeights));
  const auto file = quantised_file(config, spec);
  const auto text = std::make_shared<const data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const auto all = std::make_shared<AllRead>();
  const auto saved = std::make_shared<std::set<std::string>>();  // each file once

  Chapter chapter{.title = "quantisation", .variants = {}, .claims = claims_of(all), .after = {}};
  for (const ModelFormat& model : model_formats(config)) {
    const bool from_file = file && file->format().scheme == model.linear.scheme;
    chapter.variants.push_back(
        {.name = model.name,
         .batch = config.batch,
         .predicted =
             [=](std::size_t batch) { return reading_bytes(spec, model.linear, model.rest, read_of(config, batch)); },
         .agreement = agreement_of(model),
         .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
           const std::string path = saved->insert(model.name).second ? file_to_save(config, model) : "";
           return make_reading(context, *source, model, from_file ? file.get() : nullptr, *text, read_of(config, batch),
                               all, path);
         },
         .dtype = model.rest});
  }
  chapter.after = [=](const Results& results, Report& report) {
    show_formats(results, report, spec, *all);
    show_groups(report, *source);
    show_cards(results, report);
  };
  return chapter;
}

}  // namespace
}  // namespace oomlab::quantisation

int main(int argc, char** argv) {
  using oomlab::Defaults, oomlab::DType;
  using namespace oomlab::quantisation;
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  const Defaults published{.batch = 1,
                           .steps = 2,
                           .budget = 16384 * kMiB,
                           .options = {{kSeq, 2048}, {kBatches, 1}, {kRest, name_of(DType::bf16)}}};
  const Defaults full{.model = "bytes-llama",
                      .batch = 1,
                      .steps = 3,
                      .budget = 640 << 10,
                      .options = {{kSeq, 128},
                                  {kBatches, 16},
                                  {kGroup, kInt4Group},
                                  {kRest, name_of(DType::fp32)},
                                  kWeights,
                                  kModelConfig,
                                  kQuantised,
                                  kSave,
                                  kText},
                      .models = "bytes-llama, llama:4-8-2-128-344, or a published one",
                      .published_models = "llama-3.2-1b llama-3.1-8b llama-3.1-70b qwen2.5-7b mistral-7b",
                      .published = &published};
  const Defaults quick{
      .model = "bytes-llama", .batch = 1, .steps = 2, .budget = 640 << 10, .options = {{kSeq, 64}, {kBatches, 2}}};
  return oomlab::run_chapter(argc, argv, full, quick, declare);
}
