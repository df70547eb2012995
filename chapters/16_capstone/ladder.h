#pragma once
// This chapter's options, the ladder from the textbook's step downwards, and what each rung costs.

#include <numeric>

#include "composed.h"
#include "harness/processes.h"
#include "plan/lever/ranks.h"

namespace oomlab::capstone {

/// What is trained, as the command line says. Throws UsageError.
inline Work work_of(const Config& config) {
  return {train::transformer_of(config),      config.batch,
          config.options[train::kSeq],        config.budget,
          round_to_granule(config.workspace), train::lengths_of(config)};
}

struct Row {
  std::string name;
  Levers levers;
};

inline constexpr const char *kTextbook = "textbook", *kHalf = name_of(DType::fp16), *kArticle = "fp16, checkpoints",
                            *kCheckpoints = "checkpoints", *kLeanRow = "lean, checkpoints",
                            *kSolvedRow = "lean, solved", *kMicro = "micro-batches", *kEight = "8-bit",
                            *kAtOnce = "8-bit, in backward", *kLeast = "bf16, 8-bit, in backward",
                            *kProcessor = "processor", *kHalfProcessor = "bf16, processor",
                            *kHostMemory = "bf16, host memory";

/// From the textbook's step down: the article's two levers, and then ours, one after the other.
inline std::vector<Row> ladder() {
  const auto row = [](const char* name, const char* options) { return Row{name, plan::parse_levers(options)}; };
  return {row(kTextbook, ""),
          row(kHalf, "--precision fp16"),
          row(kArticle, "--precision fp16 --checkpoint 1"),
          row(kCheckpoints, "--checkpoint 1"),
          row(kLeanRow, "--attention tiled --loss chunked --lean --checkpoint 1"),
          row(kSolvedRow, "--attention tiled --loss chunked --lean --checkpoint solved"),
          row(kMicro, "--micro-batch 1 --attention tiled --loss chunked --lean"),
          row(kEight, "--micro-batch 1 --attention tiled --loss chunked --lean --optimizer adamw8"),
          row(kAtOnce, "--attention tiled --loss chunked --lean --checkpoint 1 --optimizer adamw8 --in-backward"),
          row(kLeast,
              "--precision bf16 --attention tiled --loss chunked --lean --checkpoint 1 --optimizer adamw8 "
              "--weight-update stochastic --in-backward"),
          row(kProcessor, "--attention tiled --loss chunked --lean --checkpoint 1 --offload"),
          row(kHalfProcessor, "--precision bf16 --attention tiled --loss chunked --lean --checkpoint 1 --offload"),
          row(kHostMemory,
              "--precision bf16 --attention tiled --loss chunked --lean --checkpoint 1 --checkpoints host --offload "
              "--stream")};
}
inline Levers levers_of_row(const char* name) {
  for (const Row& row : ladder())
    if (row.name == name) return row.levers;
  throw std::logic_error(name);
}

/// One lever after the other, as the grid shows them.
inline std::vector<std::pair<std::string, std::vector<Levers>>> grid_levers() {
  const auto of = [](const char* options) { return plan::parse_levers(options); };
  const Levers plain = of(""), half = of("--precision bf16"), checkpoints = of("--checkpoint 1"),
               eight = of("--optimizer adamw8"), micro = of("--micro-batch 1"),
               folk = of("--checkpoint 1 --optimizer adamw8"), amp = of("--precision bf16 --checkpoint 1");
  const Levers lean = levers_of_row(kLeanRow), at_once = levers_of_row(kAtOnce), least = levers_of_row(kLeast);
  const Levers lean_micro = of("--micro-batch 1 --attention tiled --loss chunked --lean --checkpoint 1"),
               eight_micro =
                   of("--micro-batch 1 --attention tiled --loss chunked --lean --checkpoint 1 --optimizer adamw8"),
               least_micro =
                   of("--precision bf16 --micro-batch 1 --attention tiled --loss chunked --lean --checkpoint 1 "
                      "--optimizer adamw8 --weight-update stochastic");
  const Levers processor = levers_of_row(kHalfProcessor), on_host = levers_of_row(kHostMemory);
  return {{"textbook, fp32", {plain}},
          {"bf16, master copy", {half}},
          {"checkpoints", {checkpoints}},
          {"8-bit moments", {eight}},
          {"micro-batches of 1", {micro}},
          {"bf16, checkpoints", {amp}},
          {"8-bit, checkpoints", {folk}},
          {"lean, checkpoints", {lean}},
          {"the same in micro-batches", {lean_micro}},
          {"and 8-bit", {eight_micro}},
          {"or 8-bit, in backward", {eight_micro, at_once}},
          {"or bf16, 8-bit, stochastic", {eight_micro, at_once, least, least_micro}},
          {"or bf16, processor", {eight_micro, at_once, least, least_micro, processor}},
          {"or bf16, host memory", {eight_micro, at_once, least, least_micro, processor, on_host}}};
}

/// The table's rows: the ladder, or the textbook's step and the combination that the options name. Throws UsageError
/// with refused()'s line for that one.
inline std::vector<Row> rows_of(const Config& config) {
  const auto chosen = plan::levers_of(config.options);
  if (!chosen) return ladder();
  if (const std::string why = refused(work_of(config), *chosen); !why.empty()) throw UsageError(why);
  const bool asked = config.devices_given && processes().size() == 1;  // of several processes choose_device() speaks
  if (const std::string why = plan::lever::devices_refused(chosen->ranks, std::size_t(config.devices));
      asked && !why.empty())
    throw UsageError(why);
  if (!refused(work_of(config), {}).empty()) return {{"chosen", *chosen}};  // bert, of which none is padded
  return {{kTextbook, {}}, {"chosen", *chosen}};
}

/// Losses that sums in another order may change, relative, over some tens of steps.
inline constexpr double kRounding = 1e-5;

/// The same bits, the same within rounding, or other numbers by design.
inline Agreement agreement_of(const Work& work, const Levers& levers) {
  const plan::Numbers numbers = numbers_of(work, levers);
  switch (numbers.change) {
    case plan::Numbers::Change::none: return {};
    case plan::Numbers::Change::rounding: return {Agreement::Kind::within_tolerance, kRounding, ""};
    case plan::Numbers::Change::fewer_bits:
    case plan::Numbers::Change::other:
    case plan::Numbers::Change::adapters: break;
  }
  return differs_by_design(numbers.why);
}

/// The same work in another batch, when the harness looks for the largest one: as many samples as micro-batches and
/// ranks can share, or a few more. Ranks that share out rows (--sequence-parallel) have as many each.
inline Work with_batch(Work work, const Levers& levers, std::size_t batch) {
  std::size_t unit = checked_product(levers.ranks.dp, std::max<std::size_t>(levers.micro_batch, 1));
  if (levers.sequence_parallel && levers.micro_batch == 0)
    unit = checked_product(unit, levers.ranks.tp / std::gcd(levers.ranks.tp, work.seq / levers.ranks.cp));
  work.batch = checked_sum(batch, unit - 1) / unit * unit;
  return work;
}

/// The card whose least times are shown where --card names none: the A100 that the article's team had.
inline const Card& card_of(const Config& config) { return config.card ? *config.card : *find_card("a100-80gb"); }

inline std::string model_words(const Config& config) {
  const auto file = config.options.find(train::kModelConfig);
  const auto positions = config.options.find(train::kPositions);
  return (file ? "--config " + *file : "--model " + config.model) +
         (positions ? fmt::format(" --positions {}", *positions) : "");
}

/// What each row of the table needs and costs, and the command that makes it.
inline void show_ladder(const Results& results, Report& report, const Work& work, const std::vector<Row>& rows) {
  const Card& card = card_of(report.config());
  std::optional<Plan> first;
  std::string commands;
  Table table{"ladder",
              "what a step of each row needs, without cuBLAS's workspace (GB: 10^9 bytes)",
              {{"row"},
               {"peak", Unit::bytes_10},
               {"share", Unit::percent, 1},
               {"products", Unit::flops, 1},
               {"least time", Unit::ms},
               {"on the host", Unit::bytes},
               {"numbers"}}};
  for (const Row& row : rows) {
    const VariantResult* const result = results.find(row.name);
    if (!result || result->outcome == VariantResult::Outcome::skipped) continue;
    const Plan plan = plan_of(work, row.levers);
    if (!first) first = plan;
    const auto seconds = least_seconds(card, row.levers, plan);
    const std::size_t on_host = plan.host.total();
    table.rows.push_back({row.name, plan.peak.total(), 100 * double(plan.peak.total()) / double(first->peak.total()),
                          plan.price.flops, seconds ? Cell(*seconds * 1e3) : Cell(), on_host ? Cell(on_host) : Cell(),
                          row.name == kTextbook ? "baseline" : words_of(numbers_of(work, row.levers))});
    report.check(
        plan.peak == without_workspace(result->predicted, report.config().workspace) || result->batch != work.batch,
        row.name + ": the plan of these levers is not what the row was predicted");
    commands += fmt::format("{}{:<26} {}", commands.empty() ? "" : "\n", row.name,
                            command_of(model_words(report.config()), work, row.levers));
  }
  report.table(table);
  report.line(fmt::format("(least time: a bound from below, on {}, host {} GB/s.)", card.title, host_gb_per_s(card)));
  report.line("");
  report.line("each row by itself:");
  report.line(commands);
  report.line("");
}

/// Of sequences of unequal lengths (--lengths): what each row of the table has for one of their tokens. Padding counts as
/// none.
inline void show_tokens(const Results& results, Report& report, const Work& work, const std::vector<Row>& rows) {
  if (work.lengths.empty()) return;
  std::uint64_t tokens = 0;
  work.lengths_in_turn().each(work.batch, [&](std::uint64_t each, std::uint64_t times) { tokens += each * times; });
  Table table{"tokens",
              fmt::format("a step's {} sequences have {} tokens; padded to {} each they take {} rows", work.batch,
                          tokens, work.seq, checked_product(work.batch, work.seq)),
              {{"row"},
               {"rows computed", Unit::count},
               {"bytes a token", Unit::bytes},
               {"products a token", Unit::flops, 6},
               {"tokens/s", Unit::count, 0}}};
  for (const Row& row : rows) {
    const VariantResult* const result = results.find(row.name);
    if (!result || result->outcome == VariantResult::Outcome::skipped || result->batch != work.batch) continue;
    const Plan plan = plan_of(work, row.levers);
    const bool alone = row.levers.ranks.ranks() == 1;  // of several ranks the price is that of the one that has most
    const double of_sequence = double(tokens) / double(work.batch);
    const bool timed = !result->samples_per_second.empty();
    table.rows.push_back({row.name, row.levers.pack ? tokens : checked_product(work.batch, work.seq),
                          plan.peak.total() / tokens, alone ? Cell(plan.price.flops / double(tokens)) : Cell(),
                          timed ? Cell(median(result->samples_per_second) * of_sequence) : Cell()});
  }
  report.table(table);
  report.line("");
}

}  // namespace oomlab::capstone
