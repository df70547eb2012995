#pragma once
// Folk advice about several GPUs, put to the test, and what the chapter tells beside its table: each rank's bytes, the
// published figures of ZeRO, and what a card holds.

#include <cmath>
#include <map>

#include "data_parallel.h"
#include "harness/finding_key.h"

namespace oomlab::multi_gpu {

// ------------------------------------------------------------------------------------------------------------ findings

/// What CUDA's context and NCCL's buffers take of a card, which no ledger sees: 1 to 2 GiB.
inline constexpr std::size_t kTakenByLibraries = std::size_t(2) << 30;
/// A usual card's memory that holds these bytes beside that; GiB, 0: none does.
inline std::size_t smallest_card(std::size_t bytes) {
  for (const std::size_t gib : {8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 180, 288})
    if (bytes <= (gib << 30) - kTakenByLibraries) return gib;
  return 0;
}

/// What a rank of a variant sends in a step, bytes, in closed form.
using Sent = std::map<std::string, std::function<std::uint64_t(int rank)>>;

inline void show_ranks(const Results& results, Report& report, const Sent& sent) {
  for (const VariantResult& v : results) {
    if (v.ranks.empty() || !v.measured) continue;
    report.line(v.ranks.size() == 1 ? v.name + ": all ranks alike" : v.name + ": each rank, those alike once");
    std::size_t largest = 0, all = 0, count = 0;
    for (std::size_t i = 0; i < v.ranks.size();) {
      // Neighbours that came out alike are one line.
      std::size_t last = i, alike = v.ranks[i].alike;
      while (last + 1 < v.ranks.size() && v.ranks[last + 1].at_peak == v.ranks[i].at_peak)
        alike += v.ranks[++last].alike;
      const RankResult& r = v.ranks[i];
      std::string line =
          fmt::format("  rank {:>4}{:<16} {:>11} =", r.rank, alike > 1 ? fmt::format(" and {} more", alike - 1) : "",
                      format_bytes(r.peak_allocated));
      for (std::size_t c = 0; c < kCategoryCount; ++c)
        line += fmt::format(" {} {}", name_of(static_cast<Category>(c)), format_bytes(r.at_peak.bytes[c]));
      line += fmt::format("; {} in flight, sends {} per step", r.most_in_flight, format_bytes(r.bytes_sent));
      report.line(line);
      largest = std::max(largest, r.peak_allocated);
      all += r.peak_allocated * alike, count += alike;
      i = last + 1;
    }
    for (const RankResult& r : v.ranks)
      report.check(r.bytes_sent == sent.at(v.name)(r.rank),
                   fmt::format("{}: rank {} sent {} bytes, {} predicted", v.name, r.rank, r.bytes_sent,
                               sent.at(v.name)(r.rank)));
    const std::size_t card = smallest_card(largest);
    report.line(fmt::format("  largest {}, mean {}, {}", format_bytes(largest), format_bytes(all / count),
                            card ? fmt::format("fits a card of {} GiB", card) : "fits no card"));
    report.line("");
  }
  report.line(fmt::format("(\"fits a card\" leaves {} for CUDA's context and NCCL's buffers)",
                          format_bytes(kTakenByLibraries)));
  report.line("");
}

/// ZeRO's own example: 7.5 billion parameters in 16 bits over 64 ranks.
inline nn::TransformerSpec zero_example() { return nn::parse_transformer("gpt:36-32-4096"); }
/// Bytes of model state per parameter that a rank of N has, BF16 with AdamW.
inline double state_per_parameter(std::size_t ranks, int stage) {
  const nn::TransformerSpec spec = zero_example();
  const nn::StepLevers levers{.element_bytes = sizeof(__nv_bfloat16),
                              .replicas = ranks,
                              .zero = stage,
                              .optimizer = {.weights = nn::WeightForm::master}};
  return double(nn::unit_state_bytes(spec, levers).total()) / double(spec.parameters());
}

inline void zero_table(Report& report) {
  const double published[] = {120, 31.4, 16.6, 1.9};
  report.line("model state of 7.5e9 parameters over 64 ranks, GB on each rank (published: Rajbhandari et al., 2020):");
  for (int stage = 0; stage < 4; ++stage) {
    const double gb = state_per_parameter(64, stage) * 7.5;
    report.line(fmt::format("  ZeRO-{}: {:.1f} (published {})", stage, gb, published[stage]));
    report.check(std::abs(gb - published[stage]) < 0.06, fmt::format("ZeRO-{} is not the published figure", stage));
  }
  report.line("");
}

/// How many parameters' state a machine holds, when ZeRO-3 shares it out over its cards.
inline void card_table(Report& report) {
  report.line(
      fmt::format("largest model whose state alone fits, {:.0f} bytes per parameter, {} of each card left free:",
                  state_per_parameter(1, 0), format_bytes(kTakenByLibraries)));
  for (const auto& [name, cards, gb] : {std::tuple("RTX 3090, 24 GB", 1, 24), std::tuple("A100, 80 GB", 1, 80),
                                        std::tuple("DGX A100, 8 x 80 GB, ZeRO-3", 8, 80)}) {
    const double bytes = cards * (gb * 1e9 - double(kTakenByLibraries));
    const double billions = bytes / (state_per_parameter(cards, 3) * cards) / 1e9;
    report.line(fmt::format("  {:<28} {:>5.1f} billion parameters", name, billions));
    report.figure(finding_key(name) + "_billion_parameters", billions);
  }
  report.line("");
}

// -------------------------------------------------------------------------------------------------------------- claims

/// Peak bytes of rank 0, or of the ranks beside it, by category.
inline Figure of_rank(bool first) {
  return [first](const VariantResult& v) -> std::optional<double> {
    for (const RankResult& r : v.ranks)
      if ((r.rank == 0) == first) return double(r.peak_allocated);
    return std::nullopt;
  };
}
inline std::optional<double> sent_by_first(const VariantResult& v) {
  return v.ranks.empty() ? std::nullopt : std::optional(double(v.ranks[0].bytes_sent));
}
inline double state_of(const ByCategory& b) {
  return double(b[Category::parameters] + b[Category::gradients] + b[Category::optimizer]);
}

/// Where a claim is judged: jobs of which only the bytes are computed, without cuBLAS workspace.
inline Job job_at(nn::TransformerSpec spec, const Layout& layout, std::size_t batch, std::size_t seq) {
  return {std::move(spec), nullptr, layout, batch, 1, seq, {}};
}

/// `n`: ranks of this run.
inline std::vector<Claim> claims_of(std::size_t n) {
  using Half = __nv_bfloat16;
  const auto name = [n](const char* variant) { return fmt::format("{} x {}", variant, n); };
  const std::string ddp = name("DDP"), first = name("DataParallel"), tensor = name("tensor parallel");
  const std::string gpipe = name("pipeline") + ", GPipe", by_turns = name("pipeline") + ", 1F1B";

  const auto bert = [](std::size_t replicas) {
    Job job = job_at(nn::parse_transformer("bert-large"), {.dp = replicas}, 8 * replicas, 512);
    job.micro_batch = 8;
    return job;
  };
  const auto zero = [](int stage) { return job_at(zero_example(), {.dp = 64, .zero = stage}, 64, 1024); };
  const auto gpt3 = [](const Layout& layout) {
    return job_at(nn::parse_transformer("gpt3-175b"), layout, 192 * layout.dp, 2048);
  };
  const Layout grid{.tp = 8, .dp = 8, .pp = 16};
  Layout all_forward_first = grid;
  all_forward_first.one_forward_one_backward = false;
  const std::string on_bert = "bert-large, 8 GPUs, 8 x 512 each, fp32",
                    on_zero = "7.5 billion parameters, 64 GPUs, bf16";

  const auto state_at = [](const Job& job) { return state_of(predict_rank<Half>(job, {0, 0, 0})); };
  const auto sent_ratio = [=](int a, int b) {
    return [=] {
      return ratio(double(sent_a_step<Half>(zero(a), {0, 0, 0})), double(sent_a_step<Half>(zero(b), {0, 0, 0})));
    };
  };
  const auto needed = [](const std::string& what, double parameters, double gb) -> Claim {
    const double per = state_per_parameter(1, 0);
    return {.text = what,  // article 24
            .what = "GB of model state, bf16 with AdamW",
            .range = at_most(gb),
            .size = fmt::format("{:.0f} billion parameters", parameters / 1e9),
            .at_size = [=] { return std::optional(per * parameters / 1e9); },
            .holds_where =
                [=] { return fmt::format("holds up to {:.1f} billion, if nothing else needs memory", gb / per); }};
  };
  return {
      {.text = "N GPUs have N times the memory",
       .what = "model state on each GPU, DDP / one device",
       .range = at_most(0.5),
       .size = on_bert,
       .at_size =
           [=] {
             return ratio(state_of(predict_rank<float>(bert(8), {0, 0, 0})),
                          state_of(predict_rank<float>(bert(1), {0, 0, 0})));
           },
       .measure = [=](const Results& r) { return r.ratio(ddp, "one device", figures::model_state); }},
      {.text = "DataParallel's first GPU fills first",  // article 22
       .what = "peak of rank 0 / of the others",
       .range = at_least(1.2),
       .size = on_bert,
       .at_size =
           [=] {
             return ratio(double(predict_data_parallel<float>(bert(8), 0).total()),
                          double(predict_data_parallel<float>(bert(8), 1).total()));
           },
       .measure =
           [=](const Results& r) { return ratio(r.value(first, of_rank(true)), r.value(first, of_rank(false))); }},
      {.text = "DDP fills all GPUs alike",  // article 22
       .what = "peak of rank 0 / of the others",
       .range = exactly(1),
       .size = on_bert,
       .at_size =
           [=] {
             return ratio(double(predict_rank<float>(bert(8), {0, 0, 0}).total()),
                          double(predict_rank<float>(bert(8), {0, 7, 0}).total()));
           },
       .measure = [=](const Results& r) { return ratio(r.value(ddp, of_rank(true)), r.value(ddp, of_rank(false))); }},
      {.text = "ZeRO-3 divides the model state by N",
       .what = "state at the peak times N, ZeRO-3 / DDP",
       .range = between(1, 1.1),
       .size = on_zero,
       .at_size = [=] { return ratio(64 * state_at(zero(3)), state_at(zero(0))); },
       .measure = [=](const Results& r) -> std::optional<double> {
         const auto share = r.ratio(name("ZeRO-3"), ddp, figures::model_state);
         return share ? std::optional(*share * double(n)) : share;
       },
       .holds_where =
           [] { return std::string("holds between steps; at the peak a layer is whole, and its gradients"); }},
      {.text = "ZeRO-1 sends no more than DDP",
       .about = About::numbers,
       .what = "bytes sent in a step, ZeRO-1 / DDP",
       .range = exactly(1),
       .size = on_zero,
       .at_size = sent_ratio(1, 0),
       .measure = [=](const Results& r) { return r.ratio(name("ZeRO-1"), ddp, sent_by_first); }},
      {.text = "ZeRO-3 sends half as much again as DDP",
       .about = About::numbers,
       .what = "bytes sent in a step, ZeRO-3 / DDP",
       .range = between(1.4, 1.6),
       .size = on_zero + ", one micro-batch",
       .at_size = sent_ratio(3, 0),
       .measure = [=](const Results& r) { return r.ratio(name("ZeRO-3"), ddp, sent_by_first); },
       .here = "with more micro-batches: ZeRO-3 gathers and reduces in each, DDP sums once in a step"},
      {.text = "tensor parallel divides activations by N",
       .what = "activation bytes times N, tensor parallel / one device",
       .range = between(1, 1.1),
       .size = "gpt3-175b, 8 GPUs, 1 x 2,048, bf16",
       .at_size =
           [=] {
             const auto activations = [&](std::size_t tp) {
               return double(predict_rank<Half>(gpt3({.tp = tp}), {0, 0, 0})[Category::activations]);
             };
             return ratio(8 * activations(8), activations(1));
           },
       .measure = [=](const Results& r) -> std::optional<double> {
         const auto share = r.ratio(tensor, "one device", figures::bytes(Category::activations));
         return share ? std::optional(*share * double(n)) : share;
       }},
      {.text = "1F1B needs less memory than GPipe",  // article 23
       .what = "largest rank's peak, 1F1B / GPipe",
       .range = at_most(0.99),
       .size = "gpt3-175b, tp 8 x pp 16 x dp 8, 192 micro-batches, bf16",
       .at_size =
           [=] {
             return ratio(double(predict_largest<Half>(gpt3(grid)).total()),
                          double(predict_largest<Half>(gpt3(all_forward_first)).total()));
           },
       .measure = [=](const Results& r) { return r.ratio(by_turns, gpipe, figures::peak); }},
      needed("a card of 80 GB trains ten billion parameters", 1e10, 80),       // article 24
      needed("640 GB on eight cards pre-train a hundred billion", 1e11, 640),  // article 24
  };
}

}  // namespace oomlab::multi_gpu
