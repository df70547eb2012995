#pragma once
// This chapter's options and variants, folk advice about inference put to the test, and what the runs show.

#include <memory>
#include <set>

#include "evaluation.h"
#include "nn/model_config.h"
#include "served.h"

namespace oomlab::inference {

inline constexpr Option<std::size_t> kBatches{"batches", "Batches of an evaluation", 1, 4096};
inline constexpr Option<std::size_t> kRequests{"requests", "Requests of the stream that is served", 1, 65536};
inline constexpr Option<std::size_t> kLongestRequest{"longest", "Tokens of the longest request, prompt and answer", 30,
                                                     1 << 20};
inline constexpr Option<std::size_t> kProcessorLayers{"processor-layers", "Last layers that run on the processor"};
inline constexpr Option<std::string> kWeights{"weights", "A .safetensors file with the weights"};
inline constexpr Option<std::string> kConfigFile{"config", "A Hugging Face config.json: the model, instead of --model"};

inline constexpr const char *kGraph = "graph", *kNoGraph = "no graph", *kOnDevice = "predictions on device",
                            *kOnHost = "predictions on host";
inline constexpr const char *kContiguous = "cache, contiguous", *kPaged = "cache, paged",
                            *kShared = "cache, paged, shared", *kEightBits = "cache, 8 bits",
                            *kOwnHeads = "cache, not grouped", *kProcessor = "layers on processor";

/// Throws UsageError, or std::invalid_argument, for a model that cannot do what is asked.
inline nn::TransformerSpec decoder_of(const Config& config) {
  const auto file = config.options.find(kConfigFile);
  const nn::TransformerSpec spec = file ? nn::read_model_config(*file) : nn::parse_transformer(config.model);
  if (!spec.llama())
    throw UsageError(
        fmt::format("model '{}' is not a decoder of this chapter; take a llama, for example bytes-llama", spec.name));
  for (const auto& [option, tokens] :
       {std::pair{"seq", config.options[kSeq]}, {"longest", config.options[kLongestRequest]}})
    if (tokens > spec.positions)
      throw UsageError(fmt::format("--{} {} is longer than the {} positions of model '{}'", option, tokens,
                                   spec.positions, spec.name));
  if (config.options[kProcessorLayers] > spec.layers)
    throw UsageError(fmt::format("--processor-layers {}: model '{}' has {} layers", config.options[kProcessorLayers],
                                 spec.name, spec.layers));
  if (spec.vocabulary < 256)
    throw UsageError(
        fmt::format("model '{}' has a vocabulary of {}; text here is bytes, 256 of them", spec.name, spec.vocabulary));
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

inline std::vector<Claim> claims_of(const Config& config, const nn::TransformerSpec& spec,
                                    const std::shared_ptr<AllServed>& served) {
  const nn::TransformerSpec llama = nn::parse_transformer("llama-3.1-8b");
  using Bf16 = __nv_bfloat16;
  const auto peak = [=](Keeping keeping, std::size_t batches) {
    return double(Evaluation<Bf16>::predicted(llama, {1, 2048, batches}, keeping).total());
  };
  const auto plan = [=](const Way& way) {
    return plan_of<Bf16>(llama, way, requests_of(512, kLongest, llama.vocabulary, way), kLongest, std::size_t(24) << 30,
                         0);
  };
  const Way contiguous{.block_tokens = kLongest}, paged{};
  const std::string small = "another model is another mixture of weights, activations and logits";
  const std::string asked = "llama-3.1-8b in bf16, one sequence of 2,048 tokens a batch";
  const std::string stream = "llama-3.1-8b in bf16, 24 GiB, 512 requests of up to 2,048 tokens";
  const auto measured = [=](const char* name, const char* other) {
    return [=](const Results& r) -> std::optional<double> {
      if (!r.find(name) || !r.find(other) || !served->contains(name) || !served->contains(other)) return std::nullopt;
      return (*served)[name].counts.mean_requests() / (*served)[other].counts.mean_requests();
    };
  };
  (void)config, (void)spec;
  return {
      {.text = "no_grad halves the memory",
       .what = "peak without a graph / with one",
       .range = between(0.4, 0.6),
       .size = asked,
       .at_size = [=] { return ratio(peak({}, 1), peak({.graph = true}, 1)); },
       .measure = [](const Results& r) { return r.ratio(kNoGraph, kGraph, figures::peak); },
       .here = small},
      {.text = "without no_grad memory grows from batch to batch",
       .what = "peak of 100 batches / of one, a graph for each that goes with its output",
       .range = at_least(1.1),
       .size = asked,
       .at_size =
           [=] {
             // The losses of all tokens are kept, 4 bytes each: they are no graph.
             const double losses = 4.0 * 2048 * 99;
             return ratio(peak({.graph = true}, 100) - losses, peak({.graph = true}, 1));
           }},
      {.text = "predictions on the device are small change",
       .what = "peak with those of 100 batches / without",
       .range = at_most(1.1),
       .size = asked,
       .at_size = [=] { return ratio(peak({.predictions = Keeping::Predictions::on_device}, 100), peak({}, 100)); },
       .measure = [](const Results& r) { return r.ratio(kOnDevice, kOnHost, figures::peak); },
       .here = small},
      {.text = "the KV cache is small change",
       .what = "cache of 64 requests of 2,048 tokens / weights",
       .range = at_most(0.1),
       .size = "llama-3.1-8b in bf16",
       .at_size =
           [=] {
             const CacheShape shape = shape_of<Bf16>(llama, contiguous);
             return ratio(64.0 * double(shape.counted_block_bytes()), double(nn::tensor_bytes(llama, sizeof(Bf16))));
           }},
      {.text = "paging wastes under 4 %",
       .what = "places that hold nothing, of those taken, in percent",
       .range = at_most(4),
       .size = stream,
       .at_size = [=] { return std::optional(plan(paged).counts.waste()); },
       .measure = [=](const Results& r) -> std::optional<double> {
         if (!r.find(kPaged) || !served->contains(kPaged)) return std::nullopt;
         return (*served)[kPaged].counts.waste();
       },
       .here = "shorter requests end sooner in their last block"},
      {.text = "pages serve 2 to 4 times the requests",
       .what = "requests at a time on the average, paged / contiguous",
       .range = between(2, 4),
       .size = stream,
       .at_size = [=] { return ratio(plan(paged).counts.mean_requests(), plan(contiguous).counts.mean_requests()); },
       .measure = measured(kPaged, kContiguous),
       .here = "the stream is short, and often all of it has been admitted"},
      {.text = "grouped queries divide the cache by heads / KV heads",
       .what = "bytes of a token, own heads / grouped, over heads / KV heads",
       .range = between(0.999, 1.001),
       .size = "llama-3.1-8b in bf16",
       .at_size =
           [=] {
             const auto bytes = [&](bool grouped) {
               return double(shape_of<Bf16>(llama, {.block_tokens = kLongest, .grouped = grouped}).block_bytes());
             };
             return ratio(bytes(false) / bytes(true), double(llama.heads) / double(llama.keys()));
           }},
      {.text = "the processor as a fallback is 10 times slower",
       .about = About::time,
       .what = "requests/s, on the device / with layers on the processor",
       .range = between(5, 20),
       .measure = [](const Results& r) { return r.ratio(kPaged, kProcessor, figures::speed); }},
  };
}

/// In which batch predictions on the device are out of memory, by the closed form and by the run.
inline void show_evaluation(const Results& results, Report& report, const nn::TransformerSpec& spec,
                            const Evaluated& of, const FailedBatch& failed) {
  const Config& c = report.config();
  if (c.budget == kUnlimited || !results.find(kOnDevice)) return;
  const Keeping keeping{.predictions = Keeping::Predictions::on_device};
  const std::size_t budget = c.budget - std::min(c.budget, round_to_granule(c.workspace));
  const auto [batch, bytes] = with_element_of(precision_of(c), [&]<class T>(T) {
    return std::pair{Evaluation<T>::batch_that_fails(spec, of, keeping, budget),
                     Evaluation<T>::prediction_bytes(spec, of)};
  });
  const bool fails = batch <= of.batches;
  report.line(fmt::format("predictions of a batch take {}: kept on the device, {}", format_bytes(bytes),
                          batch == 0 ? std::string("not even the weights fit")
                          : fails    ? fmt::format("batch {} of {} is out of memory", batch, of.batches)
                                     : fmt::format("all {} batches fit", of.batches)));
  if (batch != 0)
    report.check(failed.number == (fails ? std::optional(batch) : std::nullopt),
                 fmt::format("out of memory in batch {}, {} predicted", failed.number.value_or(0), fails ? batch : 0));
  report.line("");
}

/// Tokens of two streams of answers that are equal, up to the first difference of each answer.
inline double equal_share(const Served& a, const Served& b) {
  std::size_t equal = 0, all = 0;
  for (std::size_t r = 0; r < a.answers.size(); ++r) {
    all += a.answers[r].size();
    const auto [end, other] =
        std::mismatch(a.answers[r].begin(), a.answers[r].end(), b.answers[r].begin(), b.answers[r].end());
    equal += static_cast<std::size_t>(end - a.answers[r].begin());
  }
  return all ? double(equal) / double(all) : 1;
}

/// Requests at a time, what is wasted, and whether the answers are the same. (The walk on paper must say so, too.)
inline void show_serving(const Results& results, Report& report, const nn::TransformerSpec& spec, AllServed& served) {
  const Config& c = report.config();
  const std::size_t longest = c.options[kLongestRequest], count = c.options[kRequests];
  report.line(fmt::format(
      "{} requests of up to {} tokens:      bytes of     requests at a time   waste            equal", count, longest));
  report.line(
      fmt::format("{:<22} {:>12} {:>12} {:>8} {:>7} {:>10}  answers", "", "a token", "most", "mean", "", "preempted"));
  for (const Way& way : ways(c, spec)) {
    if (!results.find(way.name) || !served.contains(way.name)) continue;
    const Served& s = served[way.name];
    const auto requests = requests_of(count, longest, spec.vocabulary, way);
    const auto [plan, bytes] = with_element_of(precision_of(c), [&]<class T>(T) {
      return std::pair{plan_of<T>(spec, way, requests, longest, c.budget, round_to_granule(c.workspace)),
                       shape_of<T>(spec, way).block_bytes() / way.block_tokens};
    });
    const bool same_model = way.grouped && served.contains(kContiguous) && !planning();
    const double equal = same_model ? equal_share(served[kContiguous], s) : 0;
    report.line(fmt::format("{:<22} {:>12} {:>12} {:>8.1f} {:>5.1f} % {:>10}  {}", way.name, bytes,
                            s.counts.most_requests, s.counts.mean_requests(), s.counts.waste(), s.counts.preemptions,
                            same_model ? fmt::format("{:.1f} %", 100 * equal) : std::string("-")));
    report.check(s.counts == plan.counts, fmt::format("{}: another schedule than the predicted one", way.name));
    if (same_model && way.form == CacheForm::as_computed && way.processor_layers == 0)
      report.check(equal == 1, fmt::format("{}: other answers than the contiguous cache's", way.name));
  }
  report.line("(equal: up to the first token of an answer that differs from the contiguous cache's)");
  report.line("");
}

}  // namespace oomlab::inference
