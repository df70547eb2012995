#pragma once
// All combinations of levers on one device: the least peak for each time, and where published figures lie beside it.
// And whole grids of models, cards and batches: what fits before and after each lever.

#include <algorithm>

#include "ladder.h"
#include "plan/schedule.h"
#include "plan/search/task.h"

namespace oomlab::capstone {

// ------------------------------------------------------------------------------------------------------- frontier

struct Point {
  Levers levers;
  std::size_t bytes = 0;
  double seconds = 0;
};

/// What is searched: a step on one device, without solved schedules and wide embeddings.
inline plan::SearchTask on_one_device(const Work& work) {
  return {.one = work,
          .several = work,
          .change = plan::Numbers::Change::other,
          .precision = {},
          .without = {"wide"},
          .progress = {}};
}

/// Every combination of levers there that makes sense.
template <class Visit>
void visit_combinations(const Work& work, Visit visit) {
  std::vector<std::size_t> micro_batches;  // 0: the batch
  for (std::size_t n = 1; n < work.batch; n *= 2)
    if (work.batch % n == 0) micro_batches.push_back(n);
  micro_batches.push_back(0);
  const std::size_t lengths[] = {0, 1, 2, 3, nn::root_of(work.spec.layers)};
  const plan::SearchTask task = on_one_device(work);
  std::vector<Levers> passes = plan::combinations(task, {}, plan::Lever::Changes::activations);
  std::erase_if(passes, [&](const Levers& pass) {
    return pass.solved || std::ranges::find(lengths, pass.recompute) == std::end(lengths);
  });
  std::ranges::stable_sort(passes, {}, &Levers::recompute);
  for (Levers state : plan::combinations(task, {}, plan::Lever::Changes::state))
    for (const std::size_t micro_batch : micro_batches) {
      state.micro_batch = micro_batch;
      if (!refused(work, state).empty()) continue;
      for (const Levers& pass : passes) visit(plan::with_pass(state, pass));
    }
}

/// Of these, in the order of time, those that need less than all that are as fast or faster.
inline std::vector<Point> least_of(std::vector<Point> points) {
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.bytes < b.bytes;
  });
  std::vector<Point> least;
  for (const Point& point : points)
    if (least.empty() || point.bytes < least.back().bytes) least.push_back(point);
  return least;
}

/// Peaks of BERT-large in sequences of 512 that others have published. Their times are measured, ours is a bound; their
/// bytes are what nvidia-smi shows, context and cache included.
struct Published {
  const char* what;
  std::size_t mib;
  double samples_per_s;
  std::size_t batch;
};
/// Hugging Face, documentation of Transformers 4.21, "Efficient training on a single GPU": one V100 with 16 GB.
inline constexpr Published kHuggingFace[] = {{name_of(DType::fp32), 14949, 8.86, 4},
                                             {"4 micro-batches", 8681, 7.75, 4},
                                             {"4 micro-batches, checkpoints", 6775, 5.99, 4},
                                             {name_of(DType::fp16), 13939, 18.64, 4},
                                             {"fp16, 4 micro-batches, checkpoints", 7275, 10.09, 4},
                                             {"the same, 8-bit Adam", 5363, 10.35, 4}};
/// An article's team: from ... to, on one A100, AMP and checkpointing; batch and time are not given.
inline constexpr std::size_t kArticleFrom = 22'000'000'000, kArticleTo = 9'000'000'000;

inline void show_frontier(Report& report, const Work& work) {
  const Card& card = card_of(report.config());
  std::vector<Point> all, adamw, same;
  visit_combinations(work, [&](const Levers& levers) {
    const Plan plan = plan_of(work, levers);
    const auto seconds = least_seconds(card, levers, plan);
    if (!seconds) return;
    all.push_back({levers, plan.peak.total(), *seconds});
    const plan::Numbers::Change change = numbers_of(work, levers).change;
    if (change <= plan::Numbers::Change::fewer_bits) adamw.push_back(all.back());
    if (change <= plan::Numbers::Change::rounding) same.push_back(all.back());
  });
  if (all.empty()) return;
  report.table({"combinations",
                "all combinations of levers on one device; the least time of a sequence is a bound",
                {{"card"}, {"combinations", Unit::count}},
                {{card.title, all.size()}}});
  const auto show = [&](const char* name, const char* title, const std::vector<Point>& points) {
    Table table{name, title, {{"peak", Unit::bytes_10}, {"least time", Unit::ms, 4}, {"levers"}}};
    for (const Point& point : points)
      table.rows.push_back({point.bytes, 1e3 * point.seconds / double(work.batch), options_of(point.levers)});
    report.table(table);
  };
  show("frontier_same", "the same numbers within rounding:", least_of(std::move(same)));
  show("frontier_adamw", "AdamW, some of it in 16 or 8 bits:", least_of(std::move(adamw)));
  show("frontier_any", "any optimizer:", least_of(std::move(all)));
  if (work.spec.name != "bert-large" || work.seq != 512) return;
  Table table{"published",
              "published elsewhere, BERT-large at 512:",
              {{"whose"}, {"batch", Unit::count}, {"peak", Unit::bytes_10}, {"time of a sequence", Unit::ms, 4}}};
  table.rows.push_back({"an article's team, before", {}, kArticleFrom, {}});
  table.rows.push_back({"the same with AMP and checkpointing, on one A100", {}, kArticleTo, {}});
  for (const Published& p : kHuggingFace)
    table.rows.push_back({fmt::format("Hugging Face, V100: {}", p.what), p.batch, p.mib << 20, 1e3 / p.samples_per_s});
  report.table(table);
  report.line(
      "(Theirs are measured: times of a V100, and bytes as nvidia-smi shows them, context and cache included.)");
  report.line("");
}

// ------------------------------------------------------------------------------------ models x cards x batches

/// What people train, and on what: every model with its usual sequence, every batch, every size of a card.
struct GridModel {
  const char* name;
  std::size_t seq;
};
inline constexpr GridModel kGridModels[] = {{"bert-base", 512},     {"bert-large", 512},    {"gpt2", 1024},
                                            {"llama-3.2-1b", 2048}, {"qwen2.5-7b", 2048},   {"mistral-7b", 2048},
                                            {"llama-3.1-8b", 2048}, {"llama-3.1-70b", 2048}};
inline constexpr double kGridCards[] = {8, 12, 16, 24, 48, 80};  // GB
inline constexpr std::size_t kGridBatches[] = {1, 2, 4, 8, 16, 32, 64};
inline constexpr std::size_t kGridCells = std::size(kGridModels) * std::size(kGridCards) * std::size(kGridBatches);

/// Whether a card has room, a twentieth of it left for context and libraries.
inline bool fits(double card_gb, std::size_t bytes) { return double(bytes) <= 0.95e9 * card_gb; }

/// What fits of one column of the grid: bits, by model, batch and card.
using Fits = std::vector<bool>;
/// With these levers; of several, with any.
inline Fits fits_with(const std::vector<Levers>& any) {
  Fits result;
  for (const GridModel& model : kGridModels) {
    Work work{nn::parse_transformer(model.name), 1, model.seq};
    for (const std::size_t batch : kGridBatches) {
      work.batch = batch;
      std::size_t least = SIZE_MAX;
      for (const Levers& levers : any) least = std::min(least, plan_of(work, levers).peak.total());
      for (const double card : kGridCards) result.push_back(fits(card, least));
    }
  }
  return result;
}
inline std::size_t count_of(const Fits& fits) { return std::size_t(std::count(fits.begin(), fits.end(), true)); }

/// The most host memory of a step of the grid, with all that can wait there.
inline std::size_t most_on_host() {
  std::size_t most = 0;
  for (const GridModel& model : kGridModels) {
    const Work work{nn::parse_transformer(model.name), kGridBatches[std::size(kGridBatches) - 1], model.seq};
    most = std::max(most, plan_of(work, levers_of_row(kHostMemory)).host.total());
  }
  return most;
}

inline constexpr std::size_t kCellsOfModel = std::size(kGridCards) * std::size(kGridBatches);
/// The models with less than half a billion parameters come first.
inline constexpr std::size_t kSmallModels = 3;

/// The share of what fails before that fits after, in the first `models` of the grid.
inline std::optional<double> rescued(const Fits& before, const Fits& after,
                                     std::size_t models = std::size(kGridModels)) {
  std::size_t failed = 0, mended = 0;
  for (std::size_t i = 0; i < std::min(before.size(), models * kCellsOfModel); ++i)
    if (!before[i]) ++failed, mended += after[i];
  return ratio(double(mended), double(failed));
}

inline void show_grid(Report& report) {
  const auto levers = grid_levers();
  const Fits before = fits_with(levers.front().second);
  report.line(fmt::format("what fits of {} models x {} cards x {} batches ({} cells), a training step each:",
                          std::size(kGridModels), std::size(kGridCards), std::size(kGridBatches), kGridCells));
  std::string head = fmt::format("{:<28} {:>5} {:>6} {:>8}  ", "", "fit", "OOM", "rescued");
  for (const GridModel& model : kGridModels) head += fmt::format(" {:>13}", model.name);
  report.line(head);
  for (const auto& [name, any] : levers) {
    const Fits now = fits_with(any);
    const std::size_t fit = count_of(now), of_model = kCellsOfModel;
    std::string line = fmt::format("{:<28} {:>5} {:>6} {:>6.1f} %  ", name, fit, kGridCells - fit,
                                   100 * rescued(before, now).value_or(0));
    for (std::size_t m = 0; m < std::size(kGridModels); ++m)
      line += fmt::format(" {:>10}/{}",
                          std::count(now.begin() + std::ptrdiff_t(m * of_model),
                                     now.begin() + std::ptrdiff_t((m + 1) * of_model), true),
                          of_model);
    report.line(line);
  }
  report.line(
      "(cards of 8, 12, 16, 24, 48 and 80 GB, a twentieth of each left for context and libraries; batches 1 to 64;");
  report.line(
      " sequences of 512 in bert, 1,024 in gpt2, 2,048 in the others. Rescued: of what fails in the first row. The "
      "last");
  const std::size_t on_host = most_on_host();
  report.line(fmt::format(" row has up to {:.3f} GB of host memory.)", double(on_host) / 1e9));
  report.figure("most_host_bytes_of_the_grid", double(on_host));
  report.line("");
}

}  // namespace oomlab::capstone
