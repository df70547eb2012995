#pragma once
// This chapter's ladder, from the textbook's step to the longest sequence, and how long a sequence each rung takes.

#include "../16_capstone/frontier.h"

namespace oomlab::long_sequences {

using capstone::Levers, capstone::Plan, capstone::Row, capstone::Work, capstone::kTextbook;

inline constexpr const char *kState = "state on host", *kFused = "fused attention", *kChunked = "loss by chunks",
                            *kRecomputed = "checkpoints", *kOnHost = "checkpoints on host", *kTiles = "MLP by tiles",
                            *kHalf = name_of(DType::bf16), *kTensor = "tensor parallel x 2",
                            *kSequence = "sequence parallel x 2", *kRing = "ring x 2", *kUlysses = "Ulysses x 2";

/// Several devices that share out each layer: its heads and the MLP's width, and with `sequence_parallel` the other rows.
inline Levers by_heads(Levers levers, std::size_t devices, bool sequence_parallel) {
  levers.ranks = {.tp = devices};
  levers.sequence_parallel = sequence_parallel && devices > 1;
  return levers;
}
/// Several devices that share out the tokens, and ZeRO 3 the state.
inline Levers by_tokens(Levers levers, std::size_t devices, nn::ContextForm form) {
  levers.ranks = {.zero = devices > 1 ? 3 : 0, .cp = devices, .context = form};
  return levers;
}

/// Each rung has one lever more than the one above it. First goes what any sequence needs, then what grows with it. The
/// last four are what two devices make of the last one of these.
inline std::vector<Row> ladder() {
  std::vector<Row> rows;
  Levers levers;
  const auto add = [&](const char* name) { rows.push_back({name, levers}); };
  add(kTextbook);
  levers.gradients = capstone::levers_of_row(capstone::kProcessor).gradients;
  levers.streamed = true;
  add(kState);
  levers.attention = nn::AttentionForm::fused;
  add(kFused);
  levers.loss = nn::LossForm::chunked;
  add(kChunked);
  levers.recompute = 1;
  add(kRecomputed);
  levers.checkpoints_on_host = true;
  add(kOnHost);
  levers.selective_recompute = true;
  levers.mlp_tiles = 8;
  add(kTiles);
  levers.precision = DType::bf16;
  levers.optimizer.weights = plan::usual_weights(levers.precision);
  add(kHalf);
  rows.push_back({kTensor, by_heads(levers, 2, false)});
  rows.push_back({kSequence, by_heads(levers, 2, true)});
  rows.push_back({kRing, by_tokens(levers, 2, nn::ContextForm::ring)});
  rows.push_back({kUlysses, by_tokens(levers, 2, nn::ContextForm::ulysses)});
  return rows;
}
inline Levers levers_of_row(const char* name) {
  for (const Row& row : ladder())
    if (row.name == name) return row.levers;
  throw std::logic_error(name);
}

/// The rungs that go with this model and this sequence, and why others are left out, a line each.
struct Rungs {
  std::vector<Row> rows;
  std::vector<std::string> left_out;
};
inline Rungs rungs_of(const Work& work) {
  Rungs rungs;
  for (const Row& row : ladder()) {
    const std::string why = refused(work, row.levers);
    if (why.empty())
      rungs.rows.push_back(row);
    else
      rungs.left_out.push_back(fmt::format("({} is left out: {})", row.name, why));
  }
  return rungs;
}

/// Sequences are looked for in steps of so many tokens, which any number of tiles and devices here divides.
inline constexpr std::size_t kTokens = 1024;
/// Longer ones are not looked for, tokens.
inline constexpr std::size_t kMostTokens = std::size_t(1) << 30;

/// Rotary positions have no table: a model learns longer sequences than its own without a byte more of weights.
inline nn::TransformerSpec of_any_length(nn::TransformerSpec spec) {
  if (spec.llama()) spec.positions = kMostTokens;
  return spec;
}

/// The longest sequence of which one a step fits a card, or each of several, with a twentieth left for context and
/// libraries. 0: none does, or these levers do not go together.
inline std::size_t longest(const nn::TransformerSpec& spec, const Levers& levers, double card_gb) {
  if (!refused({spec, 1, kTokens}, levers).empty()) return 0;
  const auto fits = [&](std::size_t units) {
    return capstone::fits(card_gb, plan_of({spec, 1, units * kTokens}, levers).peak.total());
  };
  std::size_t bad = 1;
  while (bad < kMostTokens / kTokens && fits(bad)) bad *= 2;
  std::size_t good = bad / 2;
  while (bad - good > 1) {
    const std::size_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good * kTokens;
}

/// What a step of the longest sequence on `cards` cards takes: host memory of all of them, and hours, a bound from
/// below. Cells are empty where nothing fits, or nothing is on the host.
inline std::vector<Cell> price_cells(const Card& card, const nn::TransformerSpec& spec, const Levers& levers,
                                     std::size_t tokens) {
  if (tokens == 0) return {Cell(), Cell()};
  const Plan plan = plan_of({spec, 1, tokens}, levers);
  const std::size_t host = checked_product(levers.ranks.ranks(), plan.host.total());
  const auto seconds = least_seconds(card, levers, plan);
  return {host > 0 ? Cell(host) : Cell(), seconds ? Cell(*seconds / 3600) : Cell()};
}

/// How long a sequence of a model fits, with each rung's levers: on one card, and on eight, which share out heads.
inline void show_longest(Report& report, const nn::TransformerSpec& trained) {
  constexpr std::size_t kCards = 8;
  if (!trained.llama() || trained.keys() % kCards != 0) return;
  const nn::TransformerSpec spec = of_any_length(trained);
  const Card& card = capstone::card_of(report.config());
  const auto cell = [](std::size_t tokens) { return tokens > 0 ? Cell(tokens) : Cell(); };
  Table one{"longest",
            fmt::format("longest sequence of {} on one card, tokens", spec.name),
            {{"levers"},
             {"24 GB", Unit::count},
             {"80 GB", Unit::count},
             {"on the host", Unit::bytes_10},
             {"least hours", Unit::ratio, 3}}};
  Table eight{"longest_on_eight",
              "the same on eight cards of 80 GB",
              {{"levers"},
               {"tensor parallel", Unit::count},
               {"sequence parallel, too", Unit::count},
               {"ring", Unit::count},
               {"Ulysses", Unit::count},
               {"on the host", Unit::bytes_10},
               {"least hours", Unit::ratio, 3}}};
  for (const Row& row : ladder()) {
    if (row.levers.ranks.ranks() > 1) continue;
    const std::size_t on_one = longest(spec, row.levers, 80);
    one.rows.push_back({row.name, cell(longest(spec, row.levers, 24)), cell(on_one)});
    for (const Cell& price : price_cells(card, spec, row.levers, on_one)) one.rows.back().push_back(price);
    eight.rows.push_back({row.name});
    std::size_t farthest = 0;
    Levers of_farthest;
    for (const Levers& shared : {by_heads(row.levers, kCards, false), by_heads(row.levers, kCards, true),
                                 by_tokens(row.levers, kCards, nn::ContextForm::ring),
                                 by_tokens(row.levers, kCards, nn::ContextForm::ulysses)}) {
      const std::size_t tokens = longest(spec, shared, 80);
      eight.rows.back().push_back(cell(tokens));
      if (tokens > farthest) of_farthest = shared;
      farthest = std::max(farthest, tokens);
    }
    for (const Cell& price : price_cells(card, spec, of_farthest, farthest)) eight.rows.back().push_back(price);
  }
  report.table(one);
  report.table(eight);
  report.line(fmt::format(
      "(A twentieth of each card is left for context and libraries. Host memory, of all cards together, and hours of a "
      "step are those of the row's longest on 80 GB; hours are a bound from below, on {}.)",
      card.title));
  report.line("");
}

}  // namespace oomlab::long_sequences
