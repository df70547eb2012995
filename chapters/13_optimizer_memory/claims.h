#pragma once
// This chapter's options and variants, folk advice about optimizers put to the test, and what the runs show.

#include <fmt/format.h>

#include <cstdlib>

#include "learning.h"
#include "plan/levers.h"

namespace oomlab::optimizer_memory {

inline constexpr Option<std::string> kClip{"clip", "Scale all gradients down to a norm of at most this"};
inline constexpr Option<std::size_t> kLossScale{
    "loss-scale", "Multiply the loss by this, and leave out steps that overflow", 1, 1 << 24};
inline constexpr Option<std::size_t> kLearn{
    "learn", "After the table, train with every optimizer so many steps from 5 seeds, and show the losses", 1, 100000};

inline constexpr const char *kAdamW = "adamw", *k8Bit = "8-bit", *kBackward = "in backward",
                            *kBoth = "8-bit, in backward", *kAdafactor = "adafactor", *kSgd = "sgd",
                            *kProcessor = "processor", *kStochastic = "bf16, stochastic", *kPaged = "paged";

/// The levers of a row of one's own: --precision, and what this chapter teaches.
inline ChapterOptions with_own_levers(ChapterOptions options) {
  return plan::with_levers(options, {"03_mixed_precision", "13_optimizer_memory"});
}
/// As the command line has them; nothing when none was given. Throws UsageError for a value that is not allowed.
inline std::optional<plan::Levers> asked_levers(const Config& config) {
  for (const ChapterOption& option : with_own_levers({}))
    if (config.options.has(option.name)) return plan::levers_of(config.options);
  return std::nullopt;
}

/// The table's rows, and the one that is asked for, if any. Throws UsageError where that cannot be.
inline std::vector<Recipe> recipes(const Config& config) {
  using enum UpdateRule;
  using enum WeightForm;
  using enum GradientLife;
  using enum DType;
  std::vector<Recipe> all = {
      {kAdamW, fp32, {adamw, stored}, always},
      {k8Bit, fp32, {adamw8, stored}, always},
      {kBackward, fp32, {adamw, stored}, optimizer_in_backward},
      {kBoth, fp32, {adamw8, stored}, optimizer_in_backward},
      {kAdafactor, fp32, {adafactor, stored}, always},
      {kSgd, fp32, {sgd, stored}, always},
      {kPaged, fp32, {.rule = adamw, .weights = stored, .paged_moments = true}, always},
      {kProcessor, fp32, {adamw, stored}, offloaded},
      {"bf16, master", bf16, {adamw, master}, always},
      {kStochastic, bf16, {adamw, stochastic}, always},
      {"bf16, 8-bit", bf16, {adamw8, stochastic}, always},
      {"bf16, 8-bit, in backward", bf16, {adamw8, stochastic}, optimizer_in_backward},
      {"bf16, adafactor, in backward", bf16, {adafactor, stochastic}, optimizer_in_backward},
      {"bf16, processor", bf16, {adamw, master}, offloaded},
  };
  const auto levers = asked_levers(config);
  if (!levers) return all;
  const plan::Work work{train::transformer_of(config), config.batch, config.options[kSeq]};
  if (levers->precision == DType::fp16)
    throw UsageError("--precision fp16 is not offered here; fp32 and bf16 are (no loss scale)");
  if (const std::string why = refused(work, *levers); !why.empty()) throw UsageError(why);
  all.push_back({"chosen", levers->precision, levers->optimizer, levers->gradients});
  return all;
}

/// Throws UsageError for a batch that micro-batches do not divide, a clip that is no number, and a row of one's own
/// that uses gradients at once and cannot do what is asked.
inline Task task_of(const Config& config, const nn::TransformerSpec& spec) {
  Task task{spec, nullptr, config.batch, config.options[kSeq]};
  const std::size_t micro_batch = config.options.find(kMicroBatch).value_or(config.batch);
  if (micro_batch > config.batch || config.batch % micro_batch != 0)
    throw UsageError(fmt::format("--micro-batch {} does not divide the batch of {}", micro_batch, config.batch));
  task.request.micro_batches = config.batch / micro_batch;
  if (const auto clip = config.options.find(kClip)) {
    char* end = nullptr;
    task.request.clip = std::strtof(clip->c_str(), &end);
    if (*end != '\0' || !(task.request.clip > 0) || task.request.clip > 1e30f)
      throw UsageError(fmt::format("--clip '{}' is no norm above 0", *clip));
  }
  task.request.loss_scale = float(config.options.find(kLossScale).value_or(1));
  for (const Recipe& recipe : recipes(config))
    if (recipe.name == "chosen") require_possible(task.request, recipe.gradients);
  return task;
}

inline Agreement agreement_of(const Recipe& recipe) {
  if (recipe.dtype == DType::fp32 && recipe.form.rule == UpdateRule::adamw) return {};  // bit-equal
  return differs_by_design(recipe.dtype != DType::fp32              ? "weights of 16 bits"
                           : recipe.form.rule == UpdateRule::adamw8 ? "moments of 8 bits"
                                                                    : "another rule");
}

inline const Recipe& recipe_of(const std::vector<Recipe>& all, const std::string& name) {
  return *std::find_if(all.begin(), all.end(), [&](const Recipe& r) { return r.name == name; });
}

inline std::vector<Claim> claims_of(const Config& config, const std::shared_ptr<Learning>& learning) {
  const std::vector<Recipe> all = recipes(config);
  const nn::TransformerSpec llama = nn::parse_transformer("llama-3.1-8b");
  const auto state = [=](const char* name) { return state_per_parameter(llama, recipe_of(all, name)); };
  // Bytes of weights, gradients and optimizer state at the peak of a step of this model, on the device.
  const auto model_state = [=](const char* name) {
    const Recipe& recipe = recipe_of(all, name);
    const ByCategory bytes = predicted(Task{llama, nullptr, 1, 2048}, recipe);
    return double(bytes[Category::parameters] + bytes[Category::gradients] + bytes[Category::optimizer]);
  };
  const auto apart = [=](const char* name) {
    return [=](const Results& results) -> std::optional<double> {
      const auto spreads = spreads_apart(learning->losses(results), name, kAdamW);
      return spreads ? std::optional(std::fabs(*spreads)) : std::nullopt;
    };
  };
  const std::string size = "llama-3.1-8b",
                    in_spreads = "distance of mean losses from 5 seeds (--learn), in AdamW's spreads, ";
  const std::string small = "small tensors keep 32 bits, and each buffer is rounded up to 512 bytes";
  return {
      {.text = "8-bit Adam saves 75 %",
       .what = "share of the optimizer's state, moments in 8 bits against 32",
       .range = between(0.745, 0.755),
       .size = size,
       .at_size = [=] { return saved(state(k8Bit), state(kAdamW)); },
       .measure = [](const Results& r) { return r.saved(k8Bit, kAdamW, figures::bytes(Category::optimizer)); },
       .here = small},
      {.text = "8-bit Adam saves 75 % of the model's state",
       .what = "share of weights, gradients and optimizer state in FP32",
       .range = between(0.745, 0.755),
       .size = size,
       .at_size = [=] { return saved(model_state(k8Bit), model_state(kAdamW)); },
       .measure = [](const Results& r) { return r.saved(k8Bit, kAdamW, figures::model_state); },
       .here = small},
      {.text = "Adam needs 8 to 12 bytes per parameter",  // article 7
       .what = "bytes of AdamW's state per parameter of a model in FP32",
       .range = between(8, 12),
       .size = size,
       .at_size = [=] { return state(kAdamW); }},
      {.text = "SGD needs nothing",
       .what = "bytes of gradients and state per parameter that SGD needs beside FP32 weights",
       .range = at_most(0),
       .size = size,
       .at_size =
           [=] {
             const ByCategory bytes = predicted(Task{llama, nullptr, 1, 2048}, recipe_of(all, kSgd));
             return ratio(double(bytes[Category::gradients] + bytes[Category::optimizer]), double(llama.parameters()));
           }},
      {.text = "a step in the backward pass frees the gradients",
       .what = "share of the gradients' bytes that it saves at their most",
       .range = at_least(0.9),
       .size = size,
       .at_size =
           [=] {
             const Task task{llama, nullptr, 1, 2048};
             return saved(double(predicted(task, recipe_of(all, kBackward))[Category::gradients]),
                          double(predicted(task, recipe_of(all, kAdamW))[Category::gradients]));
           },
       .measure = [](const Results& r) { return r.saved(kBackward, kAdamW, figures::bytes(Category::gradients)); },
       .here = "one layer, or the embedding, is more of a model this small"},
      {.text = "paged moments free 8 bytes per parameter",
       .what = "bytes per parameter less at the peak, of what counts against the budget",
       .range = between(7.99, 8.01),
       .size = size,
       .at_size = [=] { return (model_state(kAdamW) - model_state(kPaged)) / double(llama.parameters()); },
       .measure = [=, parameters = double(train::transformer_of(config).parameters())](
                      const Results& r) -> std::optional<double> {
         const auto all = r.value(kAdamW, figures::model_state), rest = r.value(kPaged, figures::model_state);
         return all && rest ? std::optional((*all - *rest) / parameters) : std::nullopt;
       }},
      {.text = "8-bit Adam trains as well",
       .about = About::numbers,
       .what = in_spreads + k8Bit,
       .range = at_most(1),
       .measure = apart(k8Bit)},
      {.text = "BF16 weights without a master copy train as well, if rounding is stochastic",
       .about = About::numbers,
       .what = in_spreads + kStochastic,
       .range = at_most(1),
       .measure = apart(kStochastic)},
      {.text = "in-backward is free",
       .about = About::time,
       .what = "samples/s, in backward / adamw",
       .range = at_least(0.98),
       .measure = [](const Results& r) { return r.ratio(kBackward, kAdamW, figures::speed); }},
      {.text = "the optimizer step is cheap to move to the processor",
       .about = About::time,
       .what = "samples/s, processor / adamw",
       .range = at_least(0.9),
       .measure = [](const Results& r) { return r.ratio(kProcessor, kAdamW, figures::speed); }},
  };
}

/// What each optimizer keeps, where, and what crosses the bus.
using Seen = std::map<std::string, std::size_t>;
inline void show_state(const Results& results, Report& report, const Task& task, const std::vector<Recipe>& all,
                       const Seen& seen) {
  Table table{"state",
              "what each optimizer keeps, and moves in a step",
              {{"optimizer"},
               {"state/param", Unit::ratio, 3},
               {"gradients", Unit::bytes},
               {"peak", Unit::bytes},
               {"bus, a step", Unit::bytes},
               {"on the host", Unit::bytes}}};
  const bool plan = report.config().plan;
  for (const Recipe& recipe : all) {
    const VariantResult* const r = results.find(recipe.name);
    if (!r) continue;
    const std::size_t moved = moved_in_a_step(task, recipe), on_host = r->predicted_on_host.total();
    table.rows.push_back({recipe.name, state_per_parameter(task.spec, recipe), r->at_peak[Category::gradients],
                          r->peak_allocated, moved ? Cell(moved) : Cell(), on_host ? Cell(on_host) : Cell()});
    if (const auto found = seen.find(recipe.name); recipe.on_processor() && found != seen.end() && !plan) {
      report.check(found->second == moved,
                   fmt::format("{}: {} bytes over the bus are not the predicted ones", recipe.name, found->second));
    }
  }
  report.table(table);
  report.line(
      "(state/param: bytes of the optimizer's state on the device for each parameter, without rounding. gradients: at "
      "the peak. A parameter is 4 bytes, or in bf16 2. paged: on the host, or on the device, as there is room.)");
  report.line("");
}

/// Which of these cards has room, a twentieth of its memory left for context and libraries.
inline void show_cards(const Results& results, Report& report) {
  constexpr double kGb[] = {24, 16, 12, 8};
  const auto fits = [](double gb, std::size_t bytes) { return double(bytes) <= 0.95e9 * gb; };
  if (std::all_of(results.begin(), results.end(), [&](const VariantResult& r) { return fits(8, r.predicted_peak()); }))
    return;
  report.line("room on a card of (a twentieth of it left for context and libraries)");
  report.line(fmt::format("{:<30} {:>12} {:>7} {:>7} {:>7} {:>7}", "", "peak", "24 GB", "16 GB", "12 GB", "8 GB"));
  for (const VariantResult& r : results) {
    std::string line = fmt::format("{:<30} {:>12}", r.name, format_bytes(r.predicted_peak()));
    for (const double gb : kGb) line += fmt::format(" {:>7}", fits(gb, r.predicted_peak()) ? "yes" : "-");
    report.line(line);
  }
  report.line("");
}

}  // namespace oomlab::optimizer_memory
