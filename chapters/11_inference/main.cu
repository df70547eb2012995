// Chapter 11, inference: no graph, and a cache of pages.
//
// The problem   In inference a model runs out of memory all the same: for a graph that no backward pass reads, for
//               predictions that pile up on the device, for a cache that reserves for the longest answer.
// The idea      Keep what somebody will read. Two buffers take turns for all layers; predictions go to the host, batch
//               by batch; keys and values lie in pages of 16 tokens, handed out as answers grow. What still does not
//               fit runs on the processor.
// The bytes     Predictions: E B S V for each batch. The cache: 2 L Hk d E for each token; of the longest answer when
//               it is contiguous, of the answer so far and at most 15 more in pages. In 8 bits: 2 L Hk (d + 4).
// Run it        build/host/bin/11_inference
//               build/host/bin/11_inference --plan --model llama-3.1-8b

#include "claims.h"

namespace oomlab::inference {
namespace {

Chapter declare(const Config& config) {
  const nn::TransformerSpec spec = decoder_of(config);
  const auto weights = std::make_shared<const Weights>(spec, config.options.find(kWeights));
  const auto own_heads = std::make_shared<const Weights>(served_model(spec, {.grouped_queries = false}), std::nullopt);
  const Precision precision = precision_of(config);
  const Evaluated evaluated = evaluated_of(config);
  const auto text = std::make_shared<const data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const auto failed = std::make_shared<FailedBatch>();
  const auto served = std::make_shared<AllServed>();
  const std::vector<PlannedServer> servers = planned_servers(config, spec);
  const Agreement bit_equal;
  const auto of = [=](std::size_t sequences) {
    return Evaluated{sequences, evaluated.seq, evaluated.batches, evaluated.form};
  };

  Chapter chapter{.title = "inference", .variants = {}, .claims = claims_of(served), .after = {}};
  for (const auto& [name, keeping] : keepings())
    chapter.variants.push_back({.name = name,
                                .batch = config.batch,
                                .predicted =
                                    [=](std::size_t batch) {
                                      return with_element_of(precision, [&]<class T>(T) {
                                        return Evaluation<T>::predicted(spec, of(batch), keeping);
                                      });
                                    },
                                .agreement = bit_equal,
                                .make =
                                    [=](Context& context, std::size_t batch) {
                                      return with_element_of(precision, [&]<class T>(T) -> std::unique_ptr<Workload> {
                                        return std::make_unique<Evaluation<T>>(context, *weights, *text, of(batch),
                                                                               keeping,
                                                                               name == kOnDevice ? failed : nullptr);
                                      });
                                    },
                                .dtype = dtype_of(precision)});
  for (const PlannedServer& planned : servers)
    chapter.variants.push_back({.name = planned.config.name,
                                .batch = planned.requests->size(),
                                .predicted = [=](std::size_t) { return planned.predicted(); },
                                .agreement = differs_by_design("another task: answers are generated"),
                                .make =
                                    [=, longest = config.options[kLongestRequest]](Context& context, std::size_t) {
                                      return with_element_of(precision, [&]<class T>(T) -> std::unique_ptr<Workload> {
                                        return std::make_unique<ServingWork<T>>(
                                            context, planned.config.grouped_queries ? *weights : *own_heads,
                                            planned.config, *planned.requests, longest, served);
                                      });
                                    },
                                .dtype = dtype_of(precision)});
  chapter.after = [=](const Results& results, Report& report) {
    show_evaluation(results, report, spec, evaluated, *failed);
    show_serving(results, report, spec, servers, *served);
  };
  return chapter;
}

}  // namespace
}  // namespace oomlab::inference

int main(int argc, char** argv) {
  using oomlab::Defaults, oomlab::DType;
  using namespace oomlab::inference;
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  const Defaults published{
      .batch = 1,
      .steps = 2,
      .budget = 20480 * kMiB,
      .options = {{kSeq, 2048}, {kPrecision, name_of(DType::bf16)}, {kLongestRequest, 2048}, {kRequests, 320}}};
  const Defaults full{.model = "bytes-llama",
                      .batch = 8,
                      .steps = 3,
                      .budget = 5 * kMiB,
                      .options = {{kSeq, 128},
                                  {kBatches, 8},
                                  {kPrecision, name_of(DType::fp32)},
                                  {kLongestRequest, 512},
                                  {kRequests, 64},
                                  {kProcessorLayers, 1},
                                  kWeights,
                                  kModelConfig,
                                  kText},
                      .models = "bytes-llama, llama:4-8-2-128-344, or a published one",
                      .published_models = "llama-3.2-1b llama-3.1-8b llama-3.1-70b qwen2.5-7b mistral-7b",
                      .published = &published};
  const Defaults quick{.model = "llama:2-4-2-16-24",
                       .batch = 4,
                       .steps = 2,
                       .budget = 448 << 10,
                       .options = {{kSeq, 32}, {kBatches, 4}, {kLongestRequest, 60}, {kRequests, 12}}};
  return oomlab::run_chapter(argc, argv, full, quick, declare);
}
