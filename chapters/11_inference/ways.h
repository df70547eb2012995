#pragma once
// This chapter's options, and its variants: what an evaluation keeps, and how a stream of requests is served.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evaluation.h"
#include "plan/limits.h"
#include "served.h"

namespace oomlab::inference {

inline constexpr Option<std::size_t> kBatches{"batches", "Batches of an evaluation", 1, 4096};
inline constexpr Option<std::size_t> kRequests{"requests", "Requests of the stream that is served", 1, 65536};
inline constexpr Option<std::size_t> kLongestRequest{"longest", "Tokens of the longest request, prompt and answer", 30,
                                                     1 << 20};
inline constexpr Option<std::size_t> kProcessorLayers{"processor-layers", "Last layers that run on the processor"};

inline constexpr const char *kGraph = "graph", *kNoGraph = "no graph", *kOnDevice = "predictions on device",
                            *kOnHost = "predictions on host";
inline constexpr const char *kContiguous = "cache, contiguous", *kPaged = "cache, paged",
                            *kShared = "cache, paged, shared", *kEightBits = "cache, 8 bits",
                            *kOwnHeads = "cache, not grouped", *kProcessor = "layers on processor";

/// Throws UsageError, or std::invalid_argument, for a model that cannot do what is asked.
inline nn::TransformerSpec decoder_of(const Config& config) {
  const nn::TransformerSpec spec = decoder_of_text(config);
  if (const std::size_t longest = config.options[kLongestRequest]; longest > spec.positions)
    throw UsageError(
        fmt::format("--longest {} is longer than the {} positions of model '{}'", longest, spec.positions, spec.name));
  if (const std::size_t requests = config.options[kRequests], longest = config.options[kLongestRequest];
      requests > kMostServedTokens / longest)
    throw UsageError(
        fmt::format("--requests {} x --longest {} are more than {} tokens; --longest {} takes up to {} requests",
                    requests, longest, kMostServedTokens, longest, kMostServedTokens / longest));
  if (config.options[kProcessorLayers] > spec.layers)
    throw UsageError(fmt::format("--processor-layers {}: model '{}' has {} layers", config.options[kProcessorLayers],
                                 spec.name, spec.layers));
  return spec;
}

inline Evaluated evaluated_of(const Config& config) {
  return {config.batch, config.options[kSeq], config.options[kBatches]};
}

inline std::vector<std::pair<std::string, Keeping>> keepings() {
  using Predictions = Keeping::Predictions;
  return {{kGraph, {.graph = true}},
          {kNoGraph, {}},
          {kOnDevice, {.predictions = Predictions::on_device}},
          {kOnHost, {.predictions = Predictions::on_host}}};
}

inline std::vector<Way> ways(const Config& config, const nn::TransformerSpec& spec) {
  const std::size_t longest = config.options[kLongestRequest];
  // As many as somebody asks for, or as must, so that the longest request finds room.
  const std::size_t on_processor = with_element_of(precision_of(config), [&]<class T>(T) {
    const std::size_t fewest = fewest_on_processor(spec, config.budget, [&](std::size_t layers) {
      const Way way{.processor_layers = layers};
      const CacheShape shape = shape_of<T>(spec, way);
      return checked_sum(serving_bytes<T>(spec, shape, kMostRows, longest, shape.blocks_for(longest)).total(),
                         round_to_granule(config.workspace));
    });
    return std::min(spec.layers, fewest);
  });
  return {{.name = kContiguous, .block_tokens = longest},
          {.name = kPaged},
          {.name = kShared, .shares = true},
          {.name = kEightBits, .form = CacheForm::eight_bits},
          {.name = kOwnHeads, .grouped = false},
          {.name = kProcessor, .processor_layers = std::max(on_processor, config.options[kProcessorLayers])}};
}

/// The result of `make`, which is called once, when somebody first asks for it.
template <class Make>
auto once(Make make) {
  return [ make, made = std::make_shared<std::optional<decltype(make())>>() ]() -> const auto& {
    if (!*made) *made = make();
    return **made;
  };
}

/// A way to serve the stream of this run, and its schedule on paper.
struct PlannedWay {
  Way way;
  std::shared_ptr<const std::vector<Request>> requests;
  std::function<const ServingPlan&()> plan;
  std::function<const ByCategory&()> predicted;  ///< peak bytes, without those that the context itself has
  std::function<HostBytes()> on_host;            ///< of layers on the processor
};
inline std::vector<PlannedWay> planned_ways(const Config& config, const nn::TransformerSpec& spec) {
  const std::size_t longest = config.options[kLongestRequest], workspace = round_to_granule(config.workspace);
  std::vector<PlannedWay> all;
  for (const Way& way : ways(config, spec)) {
    const auto requests = std::make_shared<const std::vector<Request>>(
        requests_of(config.options[kRequests], longest, spec.vocabulary, way));
    with_element_of(precision_of(config), [&]<class T>(T) {
      const auto plan =
          once([=, budget = config.budget] { return plan_of<T>(spec, way, *requests, longest, budget, workspace); });
      all.push_back({way, requests, plan, once([=] {
                       return serving_bytes<T>(spec_of(spec, way), shape_of<T>(spec, way), kMostRows, longest,
                                               plan().most_blocks);
                     }),
                     [=] { return host_bytes<T>(spec_of(spec, way), shape_of<T>(spec, way), plan().most_blocks); }});
    });
  }
  return all;
}

}  // namespace oomlab::inference
