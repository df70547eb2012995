#pragma once
// What is said about mixed precision, put to the test, and what the chapter shows beside its table.

#include <memory>

#include "amp.h"
#include "precision.h"

namespace oomlab::mixed_precision {

/// The size at which claims about memory are judged. In FP32 it is the largest batch of bert-large that a card of 12 GB
/// has room for.
inline constexpr std::size_t kSizeBatch = 4, kSizeSeq = 512;
inline constexpr const char* kSize = "bert-large, batch 4 x 512";

/// From which batch on FP16 saves `share` of bert-large's peak.
inline std::optional<std::size_t> saves_from(double share) {
  const nn::TransformerSpec spec = nn::parse_transformer("bert-large");
  for (std::size_t batch = 1; batch < 1024; ++batch) {
    const auto peak = [&](Precision p) { return double(predict_precision(spec, batch, kSizeSeq, p).total()); };
    if (1 - peak(Precision::fp16) / peak(Precision::fp32) >= share) return batch;
  }
  return std::nullopt;
}

inline std::vector<Claim> claims_of(const nn::TransformerSpec& spec, const std::shared_ptr<GradientShares>& shares) {
  const nn::TransformerSpec large = nn::parse_transformer("bert-large");
  const auto at_size = [=](Precision p) { return predict_precision(large, kSizeBatch, kSizeSeq, p); };
  const auto peak = [=](Precision p) { return double(at_size(p).total()); };
  const ByCategory amp = amp_bytes(large, kSizeBatch, kSizeSeq);
  const std::string fp32 = name_of(Precision::fp32), fp16 = name_of(Precision::fp16);
  const auto damaged = [=](Precision precision) {
    return [=](const Results&) -> std::optional<double> {
      const auto found = shares->damaged.find(precision);
      return found == shares->damaged.end() ? std::nullopt : std::optional(found->second);
    };
  };
  const std::string share = fmt::format("share of {}'s first gradients that become zero or lose bits", spec.name);
  return {
      {.text = "mixed precision saves 30 to 50 % of the memory",  // article 16
       .what = "share of the peak saved by storing 16 bits, with FP32 master weights",
       .range = between(0.3, 0.5),
       .size = kSize,
       .at_size = [=] { return saved(peak(Precision::fp16), peak(Precision::fp32)); },
       .measure = [=](const Results& r) { return r.saved(fp16, fp32, figures::peak); },
       .here = "activations have another share of this model's peak",
       .from_batch = [] { return saves_from(0.3); },
       .each = fmt::format(" x {}", kSizeSeq)},
      {.text = "AMP saves 30 to 50 % of the memory",  // article 16
       .what = "share of the peak saved (below 0: added), FP32 weights with 16-bit copies; derived: textbook "
               "attention, no dropout",
       .range = between(0.3, 0.5),
       .size = kSize,
       .at_size = [=] { return saved(double(amp.total()), peak(Precision::fp32)); }},
      {.text = "FP16 halves the activations",
       .what = "activation bytes at the peak, fp16 / fp32",
       .range = between(0.49, 0.51),
       .size = kSize,
       .at_size =
           [=] {
             return ratio(double(at_size(Precision::fp16)[Category::activations]),
                          double(at_size(Precision::fp32)[Category::activations]));
           },
       .measure = [=](const Results& r) { return r.ratio(fp16, fp32, figures::bytes(Category::activations)); },
       .here = "the norms' FP32 statistics are more of a model this narrow"},
      {.text = "FP16 halves weights, gradients and optimizer state",
       .what = "their bytes, fp16 / fp32",
       .range = between(0.45, 0.55),
       .size = kSize,
       .at_size = [=] { return ratio(model_state(at_size(Precision::fp16)), model_state(at_size(Precision::fp32))); },
       .measure = [=](const Results& r) { return r.ratio(fp16, fp32, figures::model_state); }},
      {.text = "training with AMP needs 18 bytes per parameter",
       .what = "bytes of FP32 weights, 16-bit copies, gradients and moments, per parameter",
       .range = between(17.5, 18.5),
       .size = kSize,
       .at_size = [=] { return ratio(model_state(amp), double(large.parameters())); }},
      {.text = "mixed precision is 20 to 50 % faster, or more",  // article 16
       .about = About::time,
       .what = "samples/s, fp16 / fp32",
       .range = at_least(1.2),
       .measure = [=](const Results& r) { return r.ratio(fp16, fp32, figures::speed); }},
      {.text = "FP16 without a loss scale damages gradients",
       .about = About::numbers,
       .what = share,
       .range = at_least(0.01),
       .measure = damaged(Precision::pure_fp16)},
      {.text = "a loss scale of 1,024 protects them",
       .about = About::numbers,
       .what = share,
       .range = at_most(0.01),
       .measure = damaged(Precision::fp16)},
      {.text = "BF16 needs no loss scale",
       .about = About::numbers,
       .what = share,
       .range = at_most(0.01),
       .measure = damaged(Precision::bf16)},
  };
}

/// What happened to the first gradients.
inline void tell_gradients(const GradientShares& shares, Report& report) {
  Table table{"gradients",
              "shares of the first gradients",
              {{"precision"}, {"become zero", Unit::ratio}, {"become zero or lose bits", Unit::ratio}}};
  for (const auto& [precision, share] : shares.damaged)
    table.rows.push_back({name_of(precision), shares.flushed.at(precision), share});
  if (!table.rows.empty()) report.table(table);
}

/// Where the saving is and where it is not, in closed form (which the table checks, but for AMP). Without workspace and
/// data, which all designs have alike.
inline void tell_categories(Report& report, const char* name, const char* model, std::size_t batch, std::size_t seq) {
  const nn::TransformerSpec spec = nn::parse_transformer(model);
  Table table{name,
              fmt::format("{}, batch {}, seq {}: {:.4g} million parameters", model, batch, seq,
                          double(spec.parameters()) / 1e6),
              {{"precision"},
               {"parameters", Unit::bytes},
               {"gradients", Unit::bytes},
               {"optimizer", Unit::bytes},
               {"activations", Unit::bytes},
               {"together", Unit::bytes},
               {"more than fp32", Unit::percent}}};
  double fp32 = 0;
  const auto row = [&](const char* precision, ByCategory bytes) {
    bytes[Category::workspace] = bytes[Category::data] = 0;
    const double total = double(bytes.total());
    if (fp32 == 0) fp32 = total;
    table.rows.push_back({precision, bytes[Category::parameters], bytes[Category::gradients],
                          bytes[Category::optimizer], bytes[Category::activations], bytes.total(),
                          100 * (total / fp32 - 1)});
  };
  row(name_of(Precision::fp32), predict_precision(spec, batch, seq, Precision::fp32));
  row(name_of(Precision::fp16), predict_precision(spec, batch, seq, Precision::fp16));
  if (spec.vocabulary > 1000) row("AMP, derived", amp_bytes(spec, batch, seq));
  report.table(table);
}

/// Twelve steps with a short growth interval; in the sixth a gradient becomes infinite.
inline void overflow(Report& report, const nn::TransformerSpec& spec, const data::TextSampler& text) {
  if (planning()) return;
  constexpr std::uint32_t kGrowth = 3, kSteps = 12, kBad = 6;
  Ledger ledger;
  Table table{"loss_scale",
              fmt::format("loss scale, a gradient made infinite in step {}", kBad),
              {{"step", Unit::count}, {"scale after it", Unit::count}}};
  bool unchanged = false, halved = false, grew_back = false;
  std::uint64_t steps = 0;
  with_context(report.config(), kUnlimited, ledger, [&](Context& context) {
    nn::Transformer<__half> model(context, spec, kTextSeed);
    nn::ScaledOptimizer<__half> optimizer(context, model.parameters(), nn::LossScaling::dynamic_from(1024, kGrowth));
    float last = 1024;
    for (std::uint32_t step = 1; step <= kSteps; ++step) {
      check_interrupt();
      model.forward_backward(context, upload(context, text.samples(step, 1), 0, 1), {}, optimizer.scale_on_device());
      const std::uint64_t before = model.fingerprint(context), done = optimizer.state(context).steps;
      if (step == kBad) {
        const std::uint16_t infinity = 0x7c00;
        CUDA_CHECK(cudaMemcpyAsync(model.parameters().back().gradient, &infinity, sizeof infinity,
                                   cudaMemcpyHostToDevice, context.stream()));
      }
      optimizer.step(context);
      const nn::ScaleState now = optimizer.state(context);
      if (step == kBad)
        unchanged = model.fingerprint(context) == before && now.steps == done, halved = now.scale == last / 2;
      if (step == kSteps) grew_back = now.scale >= last, steps = now.steps;
      table.rows.push_back({step, now.scale});
      last = now.scale;
    }
  });
  report.table(table);
  report.check(unchanged, "the step with an infinite gradient changed a weight or was counted");
  report.check(halved, "the overflow did not halve the loss scale");
  report.check(grew_back && steps == kSteps - 1, "the loss scale did not grow back");
}

}  // namespace oomlab::mixed_precision
