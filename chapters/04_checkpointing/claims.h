#pragma once
// Folk advice about checkpointing, put to the test, and what each schedule recomputes.

#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "frontier.h"
#include "plan/flops.h"

namespace oomlab::checkpointing {

inline constexpr const char *kEveryLayer = "every layer", *kOnHost = "every layer, on the host";

/// A schedule for a batch size; and several, by name.
using Way = std::function<Schedule(std::size_t batch)>;
using Ways = std::vector<std::pair<std::string, Way>>;
/// Operations of the matrix products of a step, counted, by name.
using Counted = std::map<std::string, std::uint64_t>;

/// bert-large in sequences of 512, where these claims are commonly made: bytes by category at a step's peak, without
/// cuBLAS workspace.
inline ByCategory bert_large(std::size_t batch, Precision precision, const Schedule& schedule) {
  const nn::TransformerSpec spec = nn::parse_transformer("bert-large");
  return predict_schedule(spec, element_bytes(precision), batch, 512, schedule, resident_with(spec, precision));
}
/// The batch whose FP32 step without checkpointing comes closest to `bytes`.
inline std::size_t bert_large_batch_of(double bytes) {
  const auto off = [&](std::size_t batch) {
    return std::abs(double(bert_large(batch, Precision::fp32, keep_everything(24)).total()) - bytes);
  };
  std::size_t batch = 1;
  while (off(batch + 1) < off(batch)) ++batch;
  return batch;
}
/// Activation bytes at the peak of a model `layers` deep: how they grow with depth.
inline double activations_of(std::size_t layers, const Schedule& schedule) {
  nn::TransformerSpec spec = nn::parse_transformer("bytes-gpt");
  spec.layers = layers;
  return double(predict_schedule(spec, sizeof(float), 4, 128, schedule, {})[Category::activations]);
}

/// The same with the inputs of all layers in host memory.
inline double activations_on_device(std::size_t layers) {
  nn::TransformerSpec spec = nn::parse_transformer("bytes-gpt");
  spec.layers = layers;
  const nn::StepLevers step = step_of(sizeof(float), 4, 128, recompute_segments(layers, 1), {}, /*on_host=*/true);
  return double(nn::simulate_step(spec, step, {}).at_peak[Category::activations]);
}

inline std::vector<Claim> claims_of(const std::shared_ptr<Counted>& counted) {
  const std::string large = "bert-large, batch 8 x 512, fp32", deep = "bytes-gpt with more layers, batch 4 x 128";
  const std::string shallow = "a model this small has less of everything else: state and logits";
  // The share that "every layer" saves there.
  const auto saves = [](auto figure) {
    return [=] {
      return saved(figure(bert_large(8, Precision::fp32, recompute_segments(24, 1))),
                   figure(bert_large(8, Precision::fp32, keep_everything(24))));
    };
  };
  const auto grows = [](auto schedule_of) {
    return [=] { return ratio(activations_of(1024, schedule_of(1024)), activations_of(64, schedule_of(64))); };
  };
  const std::size_t folk = bert_large_batch_of(22e9);
  return {
      {.text = "checkpointing saves 60 % of the memory",  // article 18
       .what = "share of the peak that 'every layer' saves",
       .range = between(0.55, 0.65),
       .size = large,
       .at_size = saves([](const ByCategory& b) { return std::optional(double(b.total())); }),
       .measure = [](const Results& r) { return r.saved("every layer", "none", figures::peak); },
       .here = shallow},
      {.text = "checkpointing saves 60 % of the activations",
       .what = "share of the activations that 'every layer' saves",
       .range = at_least(0.55),
       .size = large,
       .at_size = saves([](const ByCategory& b) { return std::optional(double(b[Category::activations])); }),
       .measure =
           [](const Results& r) { return r.saved("every layer", "none", figures::bytes(Category::activations)); },
       .here = shallow},
      {.text = "checkpointing costs 20 to 30 % of the time",  // article 18
       .about = About::time,
       .what = "samples/s, none / every layer - 1",
       .range = between(0.2, 0.3),
       .measure = [](const Results& r) -> std::optional<double> {
         const auto times = r.ratio("none", "every layer", figures::speed);
         return times ? std::optional(*times - 1) : std::nullopt;
       }},
      {.text = "full recompute is a third more operations",
       .about = About::numbers,
       .what = "operations of matrix products, every layer / none - 1",
       .range = between(0.3, 0.34),
       .size = large,
       .at_size = []() -> std::optional<double> {
         const nn::TransformerSpec spec = nn::parse_transformer("bert-large");
         return double(nn::step_flops(spec, 8, 512, recompute_segments(24, 1))) /
                    double(nn::step_flops(spec, 8, 512, keep_everything(24))) -
                1;
       },
       .measure = [=](const Results& r) -> std::optional<double> {
         if (!r.find("none") || !r.find("every layer")) return std::nullopt;
         return double((*counted)["every layer"]) / double((*counted)["none"]) - 1;
       },
       .here = "a gpt layer that is recomputed leaves out its last product"},
      {.text = "BERT-large falls from 22 GB to 9 GB with AMP and checkpointing",  // article 32
       .what = "GB at the peak, fp16 and every layer recomputed",
       .range = at_most(9),
       .size = fmt::format("bert-large, batch {} x 512, {:.1f} GB in fp32 with all kept", folk,
                           double(bert_large(folk, Precision::fp32, keep_everything(24)).total()) / 1e9),
       .at_size =
           [=] {
             return std::optional(double(bert_large(folk, Precision::fp16, recompute_segments(24, 1)).total()) / 1e9);
           }},
      {.text = "checkpointing every layer needs O(sqrt L)",  // article 18
       .what = "activations of 1,024 layers / of 64, where sqrt L grows 4 times",
       .range = between(3, 5),
       .size = deep,
       .at_size = grows([](std::size_t layers) { return recompute_segments(layers, 1); })},
      {.text = "checkpointing sqrt(L) segments needs O(sqrt L)",  // article 18
       .what = "activations of 1,024 layers / of 64, where sqrt L grows 4 times",
       .range = between(3, 5),
       .size = deep,
       .at_size = grows([](std::size_t layers) { return recompute_segments(layers, root_of(layers)); })},
      {.text = "checkpoints in host memory make activations independent of the depth",
       .what = "activations on the device of 1,024 layers / of 64, inputs of all layers in host memory",
       .range = exactly(1),
       .size = deep,
       .at_size = [] { return ratio(activations_on_device(1024), activations_on_device(64)); }},
  };
}

/// What each variant recomputes and what that saves; the operations counted must be the predicted ones.
inline void show_operations(const Results& results, Report& report, const nn::TransformerSpec& spec,
                            const nn::StepForm& form, const Ways& ways, Counted& counted) {
  const Config& c = report.config();
  const std::size_t seq = c.options[train::kSeq];
  const std::uint64_t none = nn::step_flops(spec, c.batch, seq, keep_everything(spec.layers), form);
  const auto most = results.value("none", figures::peak);
  for (const auto& [name, schedule_for] : ways) {
    const auto peak = results.value(name, figures::peak);
    if (!peak) continue;
    const Schedule schedule = schedule_for(c.batch);
    const std::uint64_t flops = nn::step_flops(spec, c.batch, seq, schedule, form);
    report.line(fmt::format("{:<16}  {:>10.3f} GFLOP of matrix products, {:>4.1f} % recomputed, {:>11} saved: {}", name,
                            double(flops) / 1e9, 100 * double(flops - none) / double(none),
                            most && *most >= *peak ? format_bytes(std::size_t(*most - *peak)) : "-",
                            describe(schedule, Say{c.chinese})));
    report.check(counted[name] == flops,
                 fmt::format("{}: {} operations counted, {} predicted", name, counted[name], flops));
  }
  report.line("");
}

}  // namespace oomlab::checkpointing
