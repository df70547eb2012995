#pragma once
// Folk advice about levers together, put to the test.

#include "frontier.h"
#include "plan/model/transformer_tensors.h"
#include "plan/search/bounds.h"

namespace oomlab::capstone {

/// The textbook's FP32 step of BERT-large in sequences of 512 needs 22.0 GB with 13 of them.
inline Work bert_large() { return {nn::parse_transformer("bert-large"), 13, 512, std::size_t(9e9), 0}; }
inline double bert_large_gb(const char* row) {
  return double(plan_of(bert_large(), levers_of_row(row)).peak.total()) / 1e9;
}

/// What a device must hold at once when nothing of a model stays there. Weights come from host memory a matrix at a
/// time, as chapter 05 streams layers; the processor updates them; the layers' inputs wait in host memory, too. So: the
/// largest matrix that computes and the next one that arrives, a gradient that is made and the last one that leaves,
/// the activations of one layer, which are computed again, and a layer's input that arrives while another one leaves.
/// The sum of what each needs at most: the peak is no higher. No row of this chapter does so; these are its buffers.
inline ByCategory streamed_by_matrix(const Work& work) {
  const Levers levers = levers_of_row(kHalfProcessor);
  std::size_t largest = 0;
  nn::visit_tensors(work.spec, {},
                    [&](const nn::Place& p) { largest = std::max(largest, checked_product(p.rows, p.columns)); });
  ByCategory streamed;
  streamed[Category::parameters] = streamed[Category::gradients] =
      2 * round_to_granule(checked_product(largest, element_bytes(levers)));
  streamed[Category::activations] =
      2 * nn::residual_bytes(work.spec, element_bytes(levers), micro_batch_of(work, levers), work.seq);
  Work layer = work;
  layer.spec.layers = 1;
  Levers resident = levers;
  resident.gradients = GradientLife::always;  // they are in `streamed`
  nn::StepLevers step = plan::step_of(layer, resident);
  step.schedule = schedule_of(layer, resident);
  return nn::simulate_step(layer.spec, step, streamed).at_peak;
}

/// The least that this chapter's levers make of a step on one device, bytes. Planned are those whose bound from below
/// (plan/search/bounds.h) is smallest, until no other can be less than the least so far.
inline std::size_t least_of_all(const Work& work) {
  struct Candidate {
    std::uint64_t at_least;  // bytes
    Levers levers;
  };
  const plan::SearchTask task = on_one_device(work);
  plan::Bounds bounds(task);
  std::vector<Candidate> candidates;
  visit_combinations(work, [&](const Levers& levers) {
    const std::uint64_t micro_batch[] = {micro_batch_of(work, levers)};
    candidates.push_back({bounds.of(work, levers, plan::checkpoints_of(levers), micro_batch).bytes, levers});
  });
  std::ranges::stable_sort(candidates, {}, &Candidate::at_least);
  std::size_t least = SIZE_MAX;
  for (const Candidate& candidate : candidates) {
    if (candidate.at_least >= least) break;
    least = std::min(least, plan_of(work, candidate.levers).peak.total());
  }
  return least;
}

inline std::vector<Claim> claims_of() {
  const std::string large = fmt::format("bert-large, batch {} x {}", bert_large().batch, bert_large().seq);
  const std::string grid = fmt::format("{} models x {} cards x {} batches, seq 512 to 2,048", std::size(kGridModels),
                                       std::size(kGridCards), std::size(kGridBatches));
  const auto gb_of = [](const char* row) { return [=] { return std::optional(bert_large_gb(row)); }; };
  const auto at_most_gb = [&](const char* text, const char* row, double gb) {
    return Claim{.text = text,
                 .what = fmt::format("GB at the peak of '{}'", row),
                 .range = at_most(gb),
                 .size = large,
                 .at_size = gb_of(row)};
  };
  // What is left of the textbook's peak.
  const auto left = [](const Results& r, const char* row) { return r.ratio(row, kTextbook, figures::peak); };
  const auto share = [](const char* row) { return bert_large_gb(row) / bert_large_gb(kTextbook); };
  const auto rescues = [](std::size_t row, std::size_t models) {
    return [=] {
      const auto levers = grid_levers();
      return rescued(fits_with(levers.front().second), fits_with(levers[row].second), models);
    };
  };
  const Work gpt3{nn::parse_transformer("gpt3-175b"), 1, 2048};
  const std::string gpt3_size = fmt::format("gpt3-175b, batch {} x 2,048", gpt3.batch);
  constexpr std::size_t kFolk = 6, kAll = 13;  // rows of the grid: 8-bit and checkpoints; whatever fits best
  return {
      {.text = "BERT-large falls from 22 GB to 9 GB with AMP and checkpointing",  // article 32
       .what = "GB at the peak of 'fp16, checkpoints', where the textbook's step in FP32 needs 22.0",
       .range = at_most(9),
       .size = large,
       .at_size = gb_of(kArticle)},
      at_most_gb("6 GB are enough for the same results within rounding", kMicro, 6.0),
      at_most_gb("4 GB are enough with an 8-bit optimizer", kEight, 4.0),
      at_most_gb("3.5 GB are enough with its step in the backward pass", kAtOnce, 3.5),
      {.text = "BERT-large cannot be trained on a card with 12 GB",  // article 8
       .what = fmt::format("GB at the peak of '{}', with the same results within rounding", kProcessor),
       .range = at_least(12),
       .size = large,
       .at_size = gb_of(kProcessor)},
      {.text = "GPT-3 cannot be trained on a card with 12 GB",  // article 8
       .what =
           "GB of the buffers when matrices, gradients and layer inputs wait in host memory (no row of this chapter)",
       .range = at_least(12),
       .size = gpt3_size,
       .at_size = [=] { return std::optional(double(streamed_by_matrix(gpt3).total()) / 1e9); }},
      {.text = "this chapter's levers do not bring GPT-3 to a card with 12 GB",
       .what = "GB at the least peak of all combinations on one device",
       .range = at_least(12),
       .size = gpt3_size,
       .at_size = [=] { return std::optional(double(least_of_all(gpt3)) / 1e9); }},
      {.text = "savings multiply",
       .what = "peak of 'fp16, checkpoints' / what the shares that each leaves alone would give",
       .range = between(0.95, 1.05),
       .size = large,
       .at_size = [=] { return ratio(share(kArticle), share(kHalf) * share(kCheckpoints)); },
       .measure = [=](const Results& r) -> std::optional<double> {
         const auto both = left(r, kArticle), half = left(r, kHalf), checkpoints = left(r, kCheckpoints);
         return both && half && checkpoints ? ratio(*both, *half * *checkpoints) : std::nullopt;
       }},
      {.text = "quantisation and checkpointing make 80 % of out-of-memory errors go away",  // article 31
       .what = "share of the cells that fail in FP32 which fit with 8-bit moments and every layer recomputed",
       .range = at_least(0.8),
       .size = grid,
       .at_size = rescues(kFolk, std::size(kGridModels))},
      {.text = "8-bit moments and checkpointing do so for models below half a billion parameters",
       .what = "the same share, of bert-base, bert-large and gpt2",
       .range = at_least(0.8),
       .size = grid,
       .at_size = rescues(kFolk, kSmallModels)},
      {.text = "this chapter's levers of one card together make 80 % go away",
       .what = "the same share, of all models, with whatever fits best, and the host memory that it takes",
       .range = at_least(0.8),
       .size = grid,
       .at_size = rescues(kAll, std::size(kGridModels))},
  };
}

}  // namespace oomlab::capstone
