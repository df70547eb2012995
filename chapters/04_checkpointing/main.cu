// Chapter 04, checkpointing: compute again what you did not keep.
//
// The problem   Activations of all layers wait for the backward pass, each of them for a moment of use.
// The idea      Keep some, compute the others again. Which ones? Every layer's input alone; the inputs of sqrt(L)
//               segments; everything but what is cheap (norms, GELU) or large (attention probabilities); or what a
//               budget allows.
// The bytes     everything: L (16 R C + B H S^2) elements.  Every layer: L R C, and one layer.
//               sqrt(L) segments: sqrt(L) R C, and sqrt(L) layers.       R = B S rows of width C.
// Run it        build/host/bin/04_checkpointing
//               build/host/bin/04_checkpointing --plan --model bert-large --batch 8 --seq 512 --precision fp16
//                 --budget 12GiB

#include <map>

#include "frontier.h"

namespace {

using namespace oomlab;
using namespace oomlab::checkpointing;
using namespace oomlab::train;

constexpr std::size_t kMostLayers = 256;  // the solver's time grows faster than their square

/// Operations of the matrix products of a step, counted, by variant.
using Counted = std::map<std::string, std::uint64_t>;

template <class T>
class Checkpointed final : public Workload {
 public:
  Checkpointed(Context& context, const nn::TransformerSpec& spec, const data::TextSampler& text, std::size_t batch,
               Precision precision, Schedule schedule, std::uint64_t* counted)
      : context_(context),
        text_(text),
        model_(context, spec, kTextSeed),
        optimizer_(context, model_.parameters(), {}, scaling_of(precision), has_master_weights(precision)),
        batch_(batch),
        schedule_(std::move(schedule)),
        counted_(counted) {}

  void step() override {
    const data::TokenSamples samples = text_.samples(first_, batch_);
    first_ += batch_;
    const std::uint64_t before = context_.flops();
    checkpointed_step(context_, model_, upload(context_, samples, 0, batch_), schedule_, optimizer_.scale_on_device());
    optimizer_.step(context_);
    *counted_ = context_.flops() - before;
  }
  std::size_t samples_per_step() const override { return batch_; }
  double figure() override { return model_.loss(context_); }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

 private:
  Context& context_;
  const data::TextSampler& text_;
  nn::Transformer<T> model_;
  nn::MixedAdamW<T> optimizer_;
  std::size_t batch_, first_ = 0;
  Schedule schedule_;
  std::uint64_t* counted_;
};

Chapter checkpointing(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  if (spec.layers > kMostLayers)
    throw UsageError(
        fmt::format("model '{}' has {} layers; the solver takes up to {}", spec.name, spec.layers, kMostLayers));
  const auto text = std::make_shared<data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const auto counted = std::make_shared<Counted>();
  const Precision precision = config.precision == "fp32"   ? Precision::fp32
                              : config.precision == "fp16" ? Precision::fp16
                                                           : Precision::bf16;
  const std::size_t layers = spec.layers, seq = config.seq, budget = config.budget, bytes = element_bytes(precision);
  const ByCategory resident = resident_with(spec, precision);

  // A schedule by name, for a batch size (the solved one depends on it).
  std::vector<std::pair<std::string, std::function<Schedule(std::size_t)>>> ways = {
      {"none", [=](std::size_t) { return keep_everything(layers); }},
      {"every layer", [=](std::size_t) { return recompute_segments(layers, 1); }},
      {"sqrt(L) segments", [=](std::size_t) { return recompute_segments(layers, root_of(layers)); }},
      {"norms and GELU", [=](std::size_t) { return keep_selected(layers, {.norms = false, .gelu = false}); }},
      {"probabilities", [=](std::size_t) { return keep_selected(layers, {.probabilities = false}); }},
      {"solved", [=](std::size_t batch) {
         const auto solved = solve_schedule(spec, bytes, batch, seq, budget, resident);
         return solved ? *solved : recompute_segments(layers, 1);  // nothing fits: out of memory will say so
       }}};

  Chapter chapter;
  chapter.title = "checkpointing";
  const Agreement bit_equal;
  for (const auto& [name, schedule_for] : ways)
    chapter.variants.push_back({
        .name = name,
        .batch = config.batch,
        .predicted =
            [=, schedule_for = schedule_for](std::size_t batch) {
              return predict_schedule(spec, bytes, batch, seq, schedule_for(batch), resident);
            },
        .agreement = bit_equal,
        .make =
            [=, name = name, schedule_for = schedule_for](Context& context, std::size_t batch) {
              std::uint64_t* const count = &(*counted)[name];
              const auto make = [&]<class T>(T) -> std::unique_ptr<Workload> {
                return std::make_unique<Checkpointed<T>>(context, spec, *text, batch, precision, schedule_for(batch),
                                                         count);
              };
              return precision == Precision::fp32   ? make(float{})
                     : precision == Precision::fp16 ? make(__half{})
                                                    : make(__nv_bfloat16{});
            },
    });

  using Results = std::vector<VariantResult>;
  const auto saved = [](const Results& r, auto figure) -> std::optional<double> {
    if (r.size() != 6 || !r[0].measured || !r[1].measured) return std::nullopt;
    return 1 - figure(r[1]) / figure(r[0]);
  };
  chapter.claims = {
      {"checkpointing saves 60 % of the memory", "share of the peak saved, every layer", 0.55, 0.65,
       [=](const Results& r) { return saved(r, [](const auto& v) { return double(v.peak_allocated); }); }},
      {"checkpointing saves 60 % of the activations", "share of the activations saved, every layer", 0.55, 1,
       [=](const Results& r) {
         return saved(r, [](const auto& v) { return double(v.at_peak[Category::activations]); });
       }},
      {"checkpointing costs 20 to 30 % of the time", "samples/s, none / every layer - 1", 0.2, 0.3,
       [](const Results& r) -> std::optional<double> {
         if (r.size() != 6 || r[0].samples_per_second.empty() || r[1].samples_per_second.empty()) return std::nullopt;
         return median(r[0].samples_per_second) / median(r[1].samples_per_second) - 1;
       }},
      {"full recompute is a third more operations", "matrix products, every layer / none - 1", 0.3, 0.34,
       [=](const Results&) -> std::optional<double> {
         if (!counted->count("none") || !counted->count("every layer")) return std::nullopt;
         return double((*counted)["every layer"]) / double((*counted)["none"]) - 1;
       }},
      {"BERT-large falls from 22 GB to 9 GB with AMP and checkpointing",
       "peak at 8 x 512, fp16 every layer / fp32 none", 0.36, 0.46,
       [](const Results&) {
         return bert_large(Precision::fp16, recompute_segments(24, 1)) /
                bert_large(Precision::fp32, keep_everything(24));
       }},
      {"checkpointing every layer needs O(sqrt L)", "activations of 1,024 layers / of 64", 3, 5,
       [](const Results&) {
         return activations_of(1024, recompute_segments(1024, 1)) / activations_of(64, recompute_segments(64, 1));
       }},
      {"checkpointing sqrt(L) segments needs O(sqrt L)", "activations of 1,024 layers / of 64", 3, 5,
       [](const Results&) {
         return activations_of(1024, recompute_segments(1024, 32)) / activations_of(64, recompute_segments(64, 8));
       }},
  };

  chapter.after = [=](const Results& results, Report& report) {
    const std::uint64_t none = schedule_flops(spec, config.batch, seq, keep_everything(layers));
    const std::size_t most = results[0].baseline ? results[0].peak_allocated : 0;
    for (const VariantResult& v : results) {
      if (!v.measured) continue;
      const auto way = std::find_if(ways.begin(), ways.end(), [&](const auto& w) { return w.first == v.name; });
      const Schedule schedule = way->second(config.batch);
      const std::uint64_t flops = schedule_flops(spec, config.batch, seq, schedule);
      report.line(fmt::format("{:<16}  {:>8.3f} GFLOP of matrix products, {:>4.1f} % again, {:>11} saved: {}", v.name,
                              double(flops) / 1e9, 100 * double(flops - none) / double(none),
                              most >= v.peak_allocated ? format_bytes(most - v.peak_allocated) : "-",
                              describe(schedule)));
      report.check((*counted)[v.name] == flops,
                   fmt::format("{}: {} operations counted, {} predicted", v.name, (*counted)[v.name], flops));
    }
    report.line("");
    frontier(report, spec, precision);
  };
  return chapter;
}

}  // namespace

int main(int argc, char** argv) {
  const Defaults full{
      .model = "gpt:9-4-128", .batch = 8, .steps = 6, .budget = std::size_t(80) << 20, .seq = 128, .precision = "fp32"};
  const Defaults quick{
      .model = "gpt:4-2-32", .batch = 16, .steps = 3, .budget = std::size_t(11) << 20, .seq = 32, .precision = "fp32"};
  return run_chapter(argc, argv, full, quick, checkpointing);
}
