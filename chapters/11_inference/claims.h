#pragma once
// Folk advice about inference put to the test, and what the runs show.

#include "harness/finding_key.h"
#include "variants.h"

namespace oomlab::inference {

inline std::vector<Claim> claims_of(const std::shared_ptr<AllServed>& served) {
  const nn::TransformerSpec llama = nn::parse_transformer("llama-3.1-8b");
  using Bf16 = __nv_bfloat16;
  const auto peak = [=](Keeping keeping, std::size_t batches) {
    return double(Evaluation<Bf16>::predicted(llama, {1, 2048, batches}, keeping).total());
  };
  const ServingConfig contiguous{.block_tokens = kLongest};
  const auto planned = [&](const ServingConfig& config) {
    return once([=] {
      const auto requests = request_lengths(320, kLongest, config.shares_prefixes ? kPrefixGroup : 1);
      return schedule_within(std::size_t(20) << 30, DType::bf16, llama, config, requests, kLongest, 0).counts;
    });
  };
  const auto in_one_piece = planned(contiguous);
  const auto in_pages = planned({});  // of its own: nvcc writes a type before each
  const nn::StepLevers one_sequence{.element_bytes = sizeof(Bf16), .sequences = 1, .seq = 2048};
  const std::string small = "another model is another mixture of weights, activations and logits";
  const std::string asked = "llama-3.1-8b in bf16, one sequence of 2,048 tokens a batch";
  const std::string stream = "llama-3.1-8b in bf16, 20 GiB, 320 requests of up to 2,048 tokens";
  const auto measured = [=](const char* name, const char* other) {
    return [=](const Results& r) -> std::optional<double> {
      if (!r.find(name) || !r.find(other) || !served->contains(name) || !served->contains(other)) return std::nullopt;
      return (*served)[name].counts.mean_requests() / (*served)[other].counts.mean_requests();
    };
  };
  return {
      {// article 14
       .text = "eval() saves memory",
       .what = "peak of a forward pass with a graph, in eval() / what training has at the end of its own",
       .range = at_most(0.95),
       .size = asked,
       .at_size =
           [=] {
             ByCategory training = nn::held_bytes(llama, one_sequence);
             training[Category::parameters] = nn::tensor_bytes(llama, sizeof(Bf16));
             return ratio(peak({.graph = true}, 1),
                          double(training.total() + Evaluation<Bf16>::prediction_bytes(llama, {1, 2048, 1})));
           }},
      {// article 15
       .text = "no_grad halves the memory",
       .what = "peak without a graph / with one",
       .range = between(0.4, 0.6),
       .size = asked,
       .at_size = [=] { return ratio(peak({}, 1), peak({.graph = true}, 1)); },
       .measure = [](const Results& r) { return r.ratio(kNoGraph, kGraph, figures::peak); },
       .here = small},
      {// article 14
       .text = "without no_grad memory grows from batch to batch",
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
             const CacheShape shape = cache_shape(DType::bf16, llama, contiguous);
             return ratio(64.0 * double(shape.counted_block_bytes()), double(nn::tensor_bytes(llama, sizeof(Bf16))));
           }},
      {.text = "paging wastes under 4 %",
       .what = "places that hold nothing, of those taken, in percent",
       .range = at_most(4),
       .size = stream,
       .at_size = [=] { return std::optional(in_pages().waste()); },
       .measure = [=](const Results& r) -> std::optional<double> {
         if (!r.find(kPaged) || !served->contains(kPaged)) return std::nullopt;
         return (*served)[kPaged].counts.waste();
       },
       .here = "in shorter requests the last block, half empty, is a larger share"},
      {.text = "pages serve 2 to 4 times the requests",
       .what = "requests at a time on the average, paged / contiguous",
       .range = between(2, 4),
       .size = stream,
       .at_size = [=] { return ratio(in_pages().mean_requests(), in_one_piece().mean_requests()); },
       .measure = measured(kPaged, kContiguous),
       .here = "the stream is short, and often all of it has been admitted"},
      {.text = "grouped queries divide the cache by heads / KV heads",
       .what = "bytes of a token, own heads / grouped, over heads / KV heads",
       .range = between(0.999, 1.001),
       .size = "llama-3.1-8b in bf16",
       .at_size =
           [=] {
             const auto bytes = [&](bool grouped) {
               const ServingConfig config{.block_tokens = kLongest, .grouped_queries = grouped};
               return double(cache_shape(DType::bf16, llama, config).block_bytes());
             };
             return ratio(bytes(false) / bytes(true), double(llama.heads) / double(llama.keys()));
           }},
      {// article 30
       .text = "the processor as a fallback is 10 times slower",
       .about = About::time,
       .what = "requests/s, on the device / with layers on the processor",
       .range = between(5, 20),
       .measure = [](const Results& r) { return r.ratio(kPaged, kOnCpu, figures::speed); }},
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
  const std::optional<OutOfMemoryReport>& oom = results.find(kOnDevice)->oom;
  if (batch != 0 && (!oom || oom->by_limit))  // no device was too small before the budget was
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
inline void show_serving(const Results& results, Report& report, const nn::TransformerSpec& spec,
                         const std::vector<PlannedServer>& servers, AllServed& served) {
  const Config& c = report.config();
  report.line(fmt::format("{} requests of up to {} tokens, answered under the budget", c.options[kRequests],
                          c.options[kLongestRequest]));
  report.line(fmt::format("{:<22} {:>10}  {:>17}", "", "bytes per", "requests at a time"));
  report.line(fmt::format("{:<22} {:>10}  {:>8} {:>8} {:>8} {:>10}  {:>13}", "", "token", "most", "mean", "waste",
                          "preempted", "same answers"));
  for (const auto& [config, requests, schedule, predicted, on_host] : servers) {
    if (!results.find(config.name) || !served.contains(config.name)) continue;
    const Served& s = served[config.name];
    const bool same_model = config.grouped_queries && served.contains(kContiguous) && !planning();
    const double equal = same_model ? equal_share(served[kContiguous], s) : 0;
    report.line(fmt::format("{:<22} {:>10}  {:>8} {:>8.1f} {:>6.1f} % {:>10}  {:>13}", config.name, s.token_bytes,
                            s.counts.max_requests, s.counts.mean_requests(), s.counts.waste(), s.counts.preemptions,
                            same_model ? fmt::format("{:.1f} %", 100 * equal) : std::string("-")));
    const std::string key = finding_key(config.name);
    report.figure(key + "_most_requests", double(s.counts.max_requests));
    report.figure(key + "_mean_requests", s.counts.mean_requests());
    report.figure(key + "_waste_percent", s.counts.waste());
    if (!s.as_planned)
      report.line(fmt::format("{}: the device was out of memory where the budget was not, so requests waited longer",
                              config.name));
    else
      report.check(s.counts == schedule().counts,
                   fmt::format("{}: another schedule than the predicted one", config.name));
    if (same_model && !config.cache_dtype && config.cpu_layers == 0)
      report.check(equal == 1, fmt::format("{}: other answers than the contiguous cache's", config.name));
  }
  for (const auto& [config, requests, schedule, predicted, on_host] : servers) {
    if (!results.find(config.name) || !served.contains(config.name) || config.cpu_layers == 0) continue;
    const Served& s = served[config.name];
    const serve::HostBytes host = on_host();
    report.line(fmt::format("in host memory: {} of {} layers, {} of weights and at most {} of keys and values in FP32",
                            config.cpu_layers, spec.layers, format_bytes(host.weights), format_bytes(s.host_cache)));
    if (s.as_planned)
      report.check(s.host_cache == host.cache, fmt::format("{}: {} bytes of cache in host memory, {} predicted",
                                                           config.name, s.host_cache, host.cache));
  }
  report.line("bytes per token: on the device.");
  report.line("waste: reserved places that hold no token. preempted: requests that gave their pages back, and were");
  report.line("computed again later. same answers: share of the tokens before the first that differs from what the");
  report.line("contiguous cache gives.");
  report.line("");
}

}  // namespace oomlab::inference
