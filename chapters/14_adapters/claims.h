#pragma once
// This chapter's options and variants, folk advice about adapters put to the test, and what the runs show.

#include <fmt/format.h>

#include <cmath>

#include "fine_tuning.h"
#include "plan/card.h"
#include "plan/lever/method.h"

namespace oomlab::adapters {

using nn::OptimizerForm;
using quantised::Scheme;

using plan::lever::kRank, plan::lever::kAlpha, plan::lever::kTargets;

inline constexpr const char *kFull = "full", *kHead = "head only", *kLora = "lora", *kQv = "lora, q and v",
                            *kDropout = "lora, dropout", *kCheckpoints = "lora, checkpoints",
                            *kInt8 = "lora, int8 base", *kQlora = "qlora", *kQloraCheckpoints = "qlora, checkpoints",
                            *kMerged = "merged, inference", *kServing = "three adapters, inference";
/// Of `kDropout`: what QLoRA's scripts take.
inline constexpr float kDropoutShare = 0.1f;

/// All rows.
inline std::vector<Recipe> recipes(DType dtype, const AdapterForm& form) {
  const auto weights = has_master_weights(precision_of(dtype)) ? nn::WeightForm::master : nn::WeightForm::stored;
  const auto lora = [&](Scheme base) {
    return FineTuning{Trained::adapters, form, {.scheme = base}, dtype, {.weights = weights}};
  };
  FineTuning full = lora(Scheme::as_is);
  full.trained = Trained::all;
  FineTuning head = full;
  head.trained = Trained::head;
  FineTuning qv = lora(Scheme::as_is);
  qv.adapters.targets = "qv";
  FineTuning dropout = lora(Scheme::as_is);
  dropout.adapters.dropout = kDropoutShare;
  using enum Recipe::Use;
  return {
      {kFull, full},
      {kHead, head},
      {kLora, lora(Scheme::as_is)},
      {kQv, qv},
      {kDropout, dropout},
      {kCheckpoints, lora(Scheme::as_is), true},
      {kInt8, lora(Scheme::int8_row)},
      {kQlora, lora(Scheme::nf4)},
      {kQloraCheckpoints, lora(Scheme::nf4), true},
      {kMerged, lora(Scheme::as_is), false, merged},
      {kServing, lora(Scheme::as_is), false, several},
  };
}
inline const Recipe& recipe_of(const std::vector<Recipe>& all, const std::string& name) {
  return *std::ranges::find(all, name, &Recipe::name);
}

inline AdapterForm form_of_adapters(const Config& config) {
  return {.rank = config.options[kRank], .alpha = float(config.options[kAlpha]), .targets = config.options[kTargets]};
}
/// What is asked for; otherwise FP32, and of a billion parameters and more BF16, as such models are published.
inline DType dtype_of(const Config& config, const nn::TransformerSpec& spec) {
  const DType usual = spec.parameters() < 1'000'000'000 ? DType::fp32 : DType::bf16;
  return dtype_asked(config).value_or(usual);
}
/// The decoder of --model. Throws UsageError for a model that is none, and for targets that it does not have.
inline nn::TransformerSpec decoder_of(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  try {
    nn::require_adapters(spec, form_of_adapters(config));
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
  if (spec.vocabulary < 256)
    throw UsageError(
        fmt::format("model '{}' has a vocabulary of {}; text here is bytes, 256 of them", spec.name, spec.vocabulary));
  return spec;
}

/// Peak bytes of a row at the size at which people say it, in BF16 unless they say otherwise: no scores, no logits.
struct AtSize {
  const char* model;
  std::size_t batch = 1, seq = 2048;
  std::uint64_t rank = 16;
  DType dtype = DType::bf16;
};
inline ByCategory bytes_at(const AtSize& size, const char* name, bool checkpoints) {
  const nn::TransformerSpec spec = nn::parse_transformer(size.model);
  const Task task{spec, nullptr, nullptr, size.batch, size.seq, few_activations(spec)};
  Recipe recipe = recipe_of(recipes(size.dtype, {.rank = size.rank, .alpha = 32}), name);
  recipe.checkpoints = checkpoints;
  return predicted(task, recipe);
}
inline double peak_at(const AtSize& size, const char* name, bool checkpoints = true) {
  return double(bytes_at(size, name, checkpoints).total());
}

inline std::vector<Claim> claims_of() {
  const AtSize llama{"llama-3.1-8b"};
  const AtSize large{"llama-3.1-70b", 1, 512};
  const AtSize colab{"llama-3.1-8b", 1, 1024, 16, DType::fp16};
  const double t4 = find_card("t4")->total_gib;
  constexpr double kContextOfT4 = 0.14;  // GiB, before a kernel is loaded, as others measured
  const std::string at = "llama-3.1-8b, 1 x 2048, BF16, rank 16, checkpoints";
  const std::string small = "a model this small is activations, and rounding to 512 bytes";
  return {
      {.text = "LoRA cuts memory to a third",
       .what = "peak bytes, adapters of all matrices / full training",
       .range = at_most(1.0 / 3),
       .size = at,
       .at_size = [=] { return ratio(peak_at(llama, kLora), peak_at(llama, kFull)); },
       .measure = [](const Results& r) { return r.ratio(kLora, kFull, figures::peak); },
       .here = small},
      {.text = "QLoRA needs less than LoRA",
       .what = "peak bytes, NF4 base / BF16 base",
       .range = at_most(0.99),
       .size = at,
       .at_size = [=] { return ratio(peak_at(llama, kQlora), peak_at(llama, kLora)); },
       .measure = [](const Results& r) { return r.ratio(kQlora, kLora, figures::peak); },
       .here = "beside activations the base is small, and a decoded part of a matrix comes on top"},
      {.text = "the rank does not matter for memory",
       .what = "peak bytes, rank 256 / rank 8",
       .range = at_most(1.05),
       .size = "llama-3.1-8b, 1 x 2048, BF16, checkpoints",
       .at_size =
           [=] {
             AtSize high = llama, low = llama;
             high.rank = 256;
             low.rank = 8;
             return ratio(peak_at(high, kLora), peak_at(low, kLora));
           }},
      {.text = "activations shrink with LoRA",
       .what = "share of the activations' bytes that it saves, adapters of all matrices against full training",
       .range = at_least(0.1),
       .size = "llama-3.1-8b, 1 x 2048, BF16, rank 16, no checkpoints",
       .at_size =
           [=] {
             return saved(double(bytes_at(llama, kLora, false)[Category::activations]),
                          double(bytes_at(llama, kFull, false)[Category::activations]));
           },
       .measure = [](const Results& r) { return r.saved(kLora, kFull, figures::bytes(Category::activations)); }},
      {.text = "65B on one 48 GB card",
       .what = "GB at the peak, QLoRA, a sequence of 512 tokens",
       .range = at_most(48),
       .size = "llama-3.1-70b, rank 16, checkpoints",
       .at_size = [=] { return std::optional(peak_at(large, kQlora) / 1e9); }},
      {.text = "7B on a free T4",
       .what = fmt::format("GiB at the peak, QLoRA in FP16, 1 x 1024; a T4 has {:.2f}, and the context takes {:.2f}",
                           t4, kContextOfT4),
       .range = at_most(std::round(100 * (t4 - kContextOfT4)) / 100),
       .size = "llama-3.1-8b, rank 16, checkpoints",
       .at_size = [=] { return std::optional(peak_at(colab, kQlora) / double(1 << 30)); }},
      {.text = "an adapter costs nothing at inference",
       .what = "peak bytes, three adapters on one base / one that is merged",
       .range = at_most(1),
       .size = "llama-3.1-8b, 1 x 2048, BF16, rank 16",
       .at_size = [=] { return ratio(peak_at(llama, kServing, false), peak_at(llama, kMerged, false)); },
       .measure = [](const Results& r) { return r.ratio(kServing, kMerged, figures::peak); }},
  };
}

/// What is trained, and where the peak's bytes are.
inline void show_state(const Results& results, Report& report, const Task& task, const std::vector<Recipe>& all) {
  Table table{"state",
              "what is trained, and the bytes at the peak",
              {{"variant", Unit::text},
               {"trained", Unit::count},
               {"of all", Unit::percent},
               {"weights", Unit::bytes},
               {"gradients", Unit::bytes},
               {"optimizer", Unit::bytes},
               {"activations", Unit::bytes}}};
  for (const Recipe& recipe : all) {
    const VariantResult* const r = results.find(recipe.name);
    if (!r) continue;
    Cell trained, share;
    if (recipe.use == Recipe::Use::train) {
      const std::uint64_t count = trained_parameters(task, recipe);
      trained = Cell(count);
      share = Cell(100 * double(count) / double(task.spec.parameters()));
    }
    table.rows.push_back({recipe.name, trained, share, r->at_peak[Category::parameters],
                          r->at_peak[Category::gradients], r->at_peak[Category::optimizer],
                          r->at_peak[Category::activations]});
  }
  report.table(table);
  const VariantResult* const kept = results.find(kLora);
  const VariantResult* const again = results.find(kCheckpoints);
  if (kept && again && !planning())
    report.check(kept->fingerprint == again->fingerprint, "with checkpoints the same adapters are learned, to the bit");
}

}  // namespace oomlab::adapters
