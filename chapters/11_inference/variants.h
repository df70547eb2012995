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
inline constexpr Option<std::size_t> kLongestRequest{"longest", "Tokens of the longest request, prompt and answer",
                                                     kShortestLimit, 1 << 20};
inline constexpr Option<std::size_t> kProcessorLayers{"processor-layers", "Last layers that run on the processor"};

inline constexpr const char *kGraph = "graph", *kNoGraph = "no graph", *kOnDevice = "predictions on device",
                            *kOnHost = "predictions on host";

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

inline std::vector<ServingConfig> serving_configs(const Config& config, const nn::TransformerSpec& spec) {
  const std::size_t longest = config.options[kLongestRequest];
  // As many as somebody asks for, or as must, so that the longest request finds room.
  const std::size_t left = config.budget - std::min(config.budget, round_to_granule(config.workspace));
  const std::size_t fewest =
      fewest_cpu_layers(left, dtype_of(precision_of(config)), spec, kMaxRows, longest, /*requests=*/1);
  const std::size_t on_cpu = std::max(std::min(spec.layers, fewest), config.options[kProcessorLayers]);
  return {
      {.name = kContiguous, .block_tokens = longest}, {.name = kPaged},
      {.name = kShared, .shares_prefixes = true},     {.name = kEightBits, .cache_dtype = DType::int8},
      {.name = kOwnHeads, .grouped_queries = false},  {.name = kOnCpu, .cpu_layers = on_cpu},
  };
}

/// The result of `make`, which is called once, when somebody first asks for it.
template <class Make>
auto once(Make make) {
  return [ make, made = std::make_shared<std::optional<decltype(make())>>() ]() -> const auto& {
    if (!*made) *made = make();
    return **made;
  };
}

/// A server of this run's stream, and its schedule on paper.
struct PlannedServer {
  ServingConfig config;
  std::shared_ptr<const std::vector<Request>> requests;
  std::function<const ServingSchedule&()> schedule;
  std::function<const ByCategory&()> predicted;  ///< peak bytes, without those that the context itself has
  std::function<serve::HostBytes()> on_host;     ///< of layers on the CPU
};
inline std::vector<PlannedServer> planned_servers(const Config& config, const nn::TransformerSpec& spec) {
  const std::size_t longest = config.options[kLongestRequest], workspace = round_to_granule(config.workspace);
  const DType dtype = dtype_of(precision_of(config));
  std::vector<PlannedServer> all;
  for (const ServingConfig& serving : serving_configs(config, spec)) {
    const auto requests = std::make_shared<const std::vector<Request>>(
        requests_of(config.options[kRequests], longest, spec.vocabulary, serving));
    const nn::TransformerSpec served = served_model(spec, serving);
    const CacheShape cache = cache_shape(dtype, spec, serving);
    const auto schedule = once([=, budget = config.budget] {
      return schedule_within(budget, dtype, spec, serving, lengths_of(*requests), longest, workspace);
    });
    all.push_back({.config = serving,
                   .requests = requests,
                   .schedule = schedule,
                   .predicted = once(
                       [=] { return server_bytes(dtype, served, cache, kMaxRows, longest, schedule().max_blocks); }),
                   .on_host = [=] { return host_bytes(dtype, served, cache, schedule().max_blocks); }});
  }
  return all;
}

}  // namespace oomlab::inference
