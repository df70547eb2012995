#pragma once
// What the chapter tells beside the table: each rank's bytes, and the published figures of ZeRO.

#include "trainer.h"

namespace oomlab::multi_gpu {

inline const VariantResult* result_of(const std::vector<VariantResult>& results, std::string_view begins) {
  for (const VariantResult& r : results)
    if (r.name.starts_with(begins) && r.measured) return &r;
  return nullptr;
}

/// A usual card's memory that holds these bytes and CUDA's own (about 0.5 GiB); GiB, 0: none does.
inline std::size_t smallest_card(std::size_t bytes) {
  for (const std::size_t gib : {8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 180, 288})
    if (bytes <= (gib << 30) - (std::size_t(1) << 29)) return gib;
  return 0;
}

inline void show_ranks(const std::vector<VariantResult>& results, Report& report) {
  for (const VariantResult& v : results) {
    if (v.ranks.empty() || !v.measured) continue;
    report.line(fmt::format("{}: {}", v.name, v.ranks.size() == 1 ? "all ranks alike" : "each rank, those alike once"));
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
      line += fmt::format("; {} in flight, sends {} a step", r.most_in_flight, format_bytes(r.bytes_sent));
      report.line(line);
      largest = std::max(largest, r.peak_allocated);
      all += r.peak_allocated * alike, count += alike;
      i = last + 1;
    }
    const std::size_t card = smallest_card(largest);
    report.line(fmt::format("  largest {}, mean {}, {}", format_bytes(largest), format_bytes(all / count),
                            card ? fmt::format("fits a card of {} GiB", card) : "fits no card"));
    report.line("");
  }
}

/// ZeRO's own example, 7.5e9 parameters over 64 ranks in 16 bits: 120, 31.4, 16.6 and 1.9 GB.
inline void zero_table(Report& report) {
  const nn::TransformerSpec spec = nn::parse_transformer("gpt:36-32-4096");
  const double published[] = {120, 31.4, 16.6, 1.9};
  report.line("model state of 7.5e9 parameters over 64 ranks, GB a rank (published: Rajbhandari et al., 2020):");
  for (int stage = 0; stage < 4; ++stage) {
    const std::vector<UnitShape> units = units_of(spec, {}, 64);
    const double bytes = double(Units<__nv_bfloat16>::resident(units, 64, stage).total());
    const double gb = bytes / double(spec.parameters()) * 7.5;
    report.line(fmt::format("  ZeRO-{}: {:.1f} (published {})", stage, gb, published[stage]));
    report.check(std::abs(gb - published[stage]) < 0.06, fmt::format("ZeRO-{} is not the published figure", stage));
  }
  report.line("");
}

inline std::vector<Claim> claims_of(std::size_t n) {
  using Results = std::vector<VariantResult>;
  const auto ratio = [](const Results& results, const char* a, const char* b, auto figure) -> std::optional<double> {
    const VariantResult *x = result_of(results, a), *y = result_of(results, b);
    if (!x || !y) return std::nullopt;
    return figure(*x) / figure(*y);
  };
  const auto peak = [](const VariantResult& v) { return double(v.peak_allocated); };
  const auto state = [](const VariantResult& v) {
    return double(v.at_peak[Category::parameters] + v.at_peak[Category::gradients] + v.at_peak[Category::optimizer]);
  };
  const auto of_rank = [](const VariantResult* v, bool first) -> double {
    for (const RankResult& r : v->ranks)
      if ((r.rank == 0) == first) return double(r.peak_allocated);
    return 0;
  };
  return {
      {"N GPUs have N times the memory", "model state of a rank, DDP / one device", 0, 0.5,
       [=](const Results& r) { return ratio(r, "DDP", "one device", state); }},
      {"DataParallel's first GPU fills first", "peak of rank 0 / of rank 1", 1.2, 1e9,
       [=](const Results& r) -> std::optional<double> {
         const VariantResult* v = result_of(r, "DataParallel");
         return v ? std::optional(of_rank(v, true) / of_rank(v, false)) : std::nullopt;
       }},
      {"DDP is even", "peak of rank 0 / of rank 1", 1, 1,
       [=](const Results& r) -> std::optional<double> {
         const VariantResult* v = result_of(r, "DDP");
         if (!v || v->ranks.size() < 2) return std::nullopt;
         return of_rank(v, true) / of_rank(v, false);
       }},
      {"ZeRO-3 divides the model state by N", "state at the peak times N, ZeRO-3 / DDP", 1, 1.1,
       [=](const Results& r) -> std::optional<double> {
         const auto x = ratio(r, "ZeRO-3", "DDP", state);
         return x ? std::optional(*x * double(n)) : x;
       }},
      {"ZeRO-3 sends half as much again as DDP", "bytes sent, ZeRO-3 / DDP", 1.4, 1.6,
       [=](const Results& r) -> std::optional<double> {
         const VariantResult *x = result_of(r, "ZeRO-3"), *y = result_of(r, "DDP");
         if (!x || !y) return std::nullopt;
         return double(x->ranks[0].bytes_sent) / double(y->ranks[0].bytes_sent);
       }},
      {"tensor parallel divides activations by N", "activation bytes times N, tensor parallel / one device", 1, 1.1,
       [=](const Results& r) -> std::optional<double> {
         const auto x = ratio(r, "tensor parallel", "one device",
                              [](const VariantResult& v) { return double(v.at_peak[Category::activations]); });
         return x ? std::optional(*x * double(n)) : x;
       }},
      {"1F1B needs less memory than GPipe", "largest rank's peak, 1F1B / GPipe", 0, 0.99,
       [=](const Results& r) {
         const VariantResult *a = result_of(r, "pipeline"), *b = nullptr;
         for (const VariantResult& v : r)
           if (v.name.starts_with("pipeline") && v.name.ends_with("1F1B") && v.measured) b = &v;
         return a && b && a != b ? std::optional(peak(*b) / peak(*a)) : std::nullopt;
       }},
  };
}

}  // namespace oomlab::multi_gpu
