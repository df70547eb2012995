#pragma once
// This chapter's options, the ladder from the textbook's step downwards, and what each rung costs.

#include <charconv>
#include <map>

#include "composed.h"

namespace oomlab::capstone {

inline constexpr Option<std::string> kCheckpoint{
    "checkpoint", "none; N: recompute segments of N layers from their input; solved: what the budget allows"};
inline constexpr Option<std::string> kOptimizer{"optimizer", "adamw, adamw8 (moments in 8 bits), adafactor or sgd",
                                                "adamw adamw8 adafactor sgd"};
inline constexpr Option<std::string> kWeights{
    "weights",
    "How 16-bit weights are updated: master (an FP32 copy), stochastic or stored (rounded at random, to nearest)",
    "stored master stochastic"};
inline constexpr Option<bool> kInBackward{"in-backward", "Each gradient is used and freed in the backward pass"};
inline constexpr Option<bool> kOffload{"offload", "The processor updates the weights, from a state in host memory"};
inline constexpr Option<bool> kWideEmbeddings{"wide-embeddings", "With adamw8, embeddings keep moments of 32 bits"};

inline std::size_t checkpoint_of(const std::string& word) {
  std::size_t layers = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), layers);
  if (error != std::errc() || end != word.data() + word.size() || layers == 0)
    throw UsageError(fmt::format("--checkpoint '{}' is not allowed; write none, solved, or a number of layers", word));
  return layers;
}

/// The levers that the options name; nothing when they name none. Throws UsageError for a value that is not allowed.
inline std::optional<Levers> levers_of(const OptionValues& options) {
  Levers levers;
  bool asked = false;
  const auto word = [&](const Option<std::string>& option) {
    const auto value = options.find(option);
    asked = asked || value;
    return value;
  };
  const auto number = [&](const Option<std::size_t>& option, std::size_t otherwise) {
    const auto value = options.find(option);
    asked = asked || value;
    return value.value_or(otherwise);
  };
  const auto flag = [&](const Option<bool>& option) {
    asked = asked || options[option];
    return options[option];
  };
  if (const auto name = word(train::kPrecision)) levers.precision = parse_dtype(*name);
  levers.micro_batch = number(train::kMicroBatch, 0);
  if (const auto name = word(train::kAttention)) levers.attention = nn::parse_attention(*name);
  if (const auto name = word(train::kLoss)) levers.loss = nn::parse_loss(*name);
  levers.lean = flag(train::kLean);
  if (const auto name = word(kCheckpoint); name && *name != "none") {
    levers.solved = *name == "solved";
    levers.recompute = levers.solved ? 0 : checkpoint_of(*name);
  }
  if (const auto name = word(kOptimizer)) levers.optimizer.rule = nn::parse_update_rule(*name);
  levers.optimizer.weights = usual_weights(levers.precision);
  if (const auto name = word(kWeights))
    levers.optimizer.weights = *name == "master"       ? WeightForm::master
                               : *name == "stochastic" ? WeightForm::stochastic
                                                       : WeightForm::stored;
  levers.optimizer.wide_embeddings = flag(kWideEmbeddings);
  const bool at_once = flag(kInBackward), offload = flag(kOffload);
  if (at_once && offload) throw UsageError("--offload has each gradient sent to the host: leave --in-backward out");
  levers.gradients = offload ? GradientLife::sent_to_host : at_once ? GradientLife::used_at_once : GradientLife::always;
  levers.ranks = {.tp = number(multi_gpu::kTp, 1),
                  .dp = number(multi_gpu::kDp, 1),
                  .pp = number(multi_gpu::kPp, 1),
                  .zero = int(number(multi_gpu::kZero, 0))};
  return asked ? std::optional(levers) : std::nullopt;
}

/// What is trained, as the command line says. Throws UsageError.
inline Work work_of(const Config& config) {
  return {train::transformer_of(config), config.batch, config.options[train::kSeq], config.budget,
          round_to_granule(config.workspace)};
}

struct Row {
  std::string name;
  Levers levers;
};

inline constexpr const char *kTextbook = "textbook", *kHalf = name_of(DType::fp16), *kArticle = "fp16, checkpoints",
                            *kCheckpoints = "checkpoints", *kLeanRow = "lean, checkpoints",
                            *kSolvedRow = "lean, solved", *kMicro = "micro-batches", *kEight = "8-bit",
                            *kAtOnce = "8-bit, in backward", *kLeast = "bf16, 8-bit, in backward",
                            *kProcessor = "processor", *kHalfProcessor = "bf16, processor";

/// From the textbook's step down: the article's two levers, and then ours, one after the other.
inline std::vector<Row> ladder() {
  using nn::AttentionForm, nn::LossForm;
  using enum DType;
  Levers half{.precision = fp16}, article = half, checkpoints;
  half.optimizer.weights = article.optimizer.weights = WeightForm::master;
  article.recompute = checkpoints.recompute = 1;
  Levers lean{.attention = AttentionForm::tiled, .loss = LossForm::chunked, .lean = true, .recompute = 1};
  Levers solved = lean, micro = lean;
  solved.recompute = 0, solved.solved = true;
  micro.recompute = 0, micro.micro_batch = 1;
  Levers eight = micro, at_once = lean;
  eight.optimizer.rule = at_once.optimizer.rule = UpdateRule::adamw8;
  at_once.gradients = GradientLife::used_at_once;
  Levers least = at_once, processor = lean;
  least.precision = bf16, least.optimizer.weights = WeightForm::stochastic;
  processor.gradients = GradientLife::sent_to_host;
  Levers half_processor = processor;
  half_processor.precision = bf16, half_processor.optimizer.weights = WeightForm::master;
  return {{kTextbook, {}},    {kHalf, half},        {kArticle, article},     {kCheckpoints, checkpoints},
          {kLeanRow, lean},   {kSolvedRow, solved}, {kMicro, micro},         {kEight, eight},
          {kAtOnce, at_once}, {kLeast, least},      {kProcessor, processor}, {kHalfProcessor, half_processor}};
}
inline Levers levers_of_row(const char* name) {
  for (const Row& row : ladder())
    if (row.name == name) return row.levers;
  throw std::logic_error(name);
}

/// The table's rows: the ladder, or the textbook's step and the combination that the options name. Throws UsageError
/// with refused()'s line for that one.
inline std::vector<Row> rows_of(const Config& config) {
  const auto chosen = levers_of(config.options);
  if (!chosen) return ladder();
  if (const std::string why = refused(work_of(config), *chosen); !why.empty()) throw UsageError(why);
  if (const std::string why = multi_gpu::devices_refused(chosen->ranks, std::size_t(config.devices));
      config.devices_given && !why.empty())
    throw UsageError(why);
  return {{kTextbook, {}}, {"chosen", *chosen}};
}

/// Losses that sums in another order may change, relative, over some tens of steps.
inline constexpr double kRounding = 1e-5;

/// The same bits, the same within rounding, or other numbers by design.
inline Agreement numbers_of(const Work& work, const Levers& levers) {
  if (levers.precision != DType::fp32) return differs_by_design("weights of 16 bits");
  if (levers.optimizer.rule == UpdateRule::adamw8) return differs_by_design("moments of 8 bits");
  if (levers.optimizer.rule != UpdateRule::adamw) return differs_by_design("another rule");
  const bool same_sums = levers.attention == nn::AttentionForm::textbook && levers.loss == nn::LossForm::full &&
                         !levers.lean && micro_batches_of(work, levers) == 1 && levers.ranks.ranks() == 1;
  if (same_sums) return {};
  return {Agreement::Kind::within_tolerance, kRounding, ""};
}
inline const char* words_of(const Agreement& agreement) {
  return agreement.kind == Agreement::Kind::bit_equal          ? "bit-equal"
         : agreement.kind == Agreement::Kind::within_tolerance ? "the same within rounding"
                                                               : agreement.why.c_str();
}

/// The same work in another batch, when the harness looks for the largest one: as many samples as micro-batches and
/// ranks can share, or a few more.
inline Work with_batch(Work work, const Levers& levers, std::size_t batch) {
  const std::size_t unit = checked_product(levers.ranks.dp, std::max<std::size_t>(levers.micro_batch, 1));
  work.batch = checked_sum(batch, unit - 1) / unit * unit;
  return work;
}

/// The card whose least times are shown where --card names none: the A100 that the article's team had.
inline const Card& card_of(const Config& config) { return config.card ? *config.card : *find_card("a100-80gb"); }

inline std::string model_words(const Config& config) {
  const auto file = config.options.find(train::kModelConfig);
  return file ? "--config " + *file : "--model " + config.model;
}

/// "22.018 GB", "1.668 MB": 10^9 and 10^6 bytes.
inline std::string words_of_peak(std::size_t bytes) {
  const bool large = bytes >= 100'000'000;
  return fmt::format("{:.3f} {}", double(bytes) / (large ? 1e9 : 1e6), large ? "GB" : "MB");
}

/// What each row of the table needs and costs, and the command that makes it.
inline void show_ladder(const Results& results, Report& report, const Work& work, const std::vector<Row>& rows) {
  const Card& card = card_of(report.config());
  std::optional<Plan> first;
  std::string commands;
  report.line(fmt::format("{:<26} {:>9} {:>8} {:>13} {:>12} {:>11}   {}", "", "peak", "share", "GFLOP a step",
                          "least time", "on the host", "numbers"));
  for (const Row& row : rows) {
    const VariantResult* const result = results.find(row.name);
    if (!result || result->outcome == VariantResult::Outcome::skipped) continue;
    const Plan plan = plan_of(work, row.levers);
    if (!first) first = plan;
    const auto seconds = least_seconds(card, row.levers, plan);
    report.line(fmt::format("{:<26} {:>9} {:>6.1f} % {:>13.5g} {:>12} {:>11}   {}", row.name,
                            words_of_peak(plan.peak.total()),
                            100 * double(plan.peak.total()) / double(first->peak.total()), plan.price.flops / 1e9,
                            seconds ? fmt::format("{:.3g} ms", *seconds * 1e3) : "-",
                            plan.price.pinned_bytes ? format_bytes(plan.price.pinned_bytes) : "-",
                            row.name == kTextbook ? "baseline" : words_of(numbers_of(work, row.levers))));
    report.check(
        plan.peak == without_workspace(result->predicted, report.config().workspace) || result->batch != work.batch,
        row.name + ": the plan of these levers is not what the row was predicted");
    commands += fmt::format("{}{:<26} {}", commands.empty() ? "" : "\n", row.name,
                            command_of(model_words(report.config()), work, row.levers));
  }
  report.line(fmt::format(
      "(GB: 10^9 bytes, MB: 10^6, without cuBLAS's workspace. Least time: a bound from below, on {}, host {} GB/s.)",
      card.title, host_gb_per_s(card)));
  report.line("");
  report.line("each row by itself:");
  report.line(commands);
  report.line("");
}

}  // namespace oomlab::capstone
