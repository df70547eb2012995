// Chapter 16, the capstone: every lever of the course in one program.
//
// The problem   BERT-large, 13 sequences of 512, in FP32 as textbooks have it: 22.0 GB.
// The idea      Each chapter's lever takes its bytes out of the same step. Which ones are worth pulling after the
//               others? The answer is a ladder, each rung with what it needs, what it costs, and whether the numbers
//               are still the same.
// The bytes     state: parameters x (weight + gradient + optimizer). Activations: layers x what each keeps, and the
//               fullest moment. The closed form of a combination is one simulation of its step (plan/plan.h).
// Run it        build/host/bin/16_capstone
//               build/host/bin/16_capstone --plan --model bert-large
//               build/host/bin/16_capstone --plan --model llama-3.1-8b --precision bf16 --attention tiled
//                 --loss chunked --lean --checkpoint 1 --optimizer adamw8 --weight-update stochastic --in-backward

#include "claims.h"
#include "variants.h"

namespace oomlab::capstone {
namespace {

Chapter declare(const Config& config) {
  const Work work = work_of(config);
  const std::vector<Row> rows = rows_of(config);
  const Text text = std::make_shared<const data::TextSampler>(train::text_for(config, work.spec, /*ragged=*/false));

  Chapter chapter{.title = "the capstone", .variants = {}, .claims = claims_of(), .after = {}};
  for (const Row& row : rows) {
    if (row.levers.ranks.ranks() > 1) chapter.ranks_asked_with = "--tp x --pp x --dp";
    chapter.variants.push_back(variant_of(row, work, text));
  }
  chapter.after = [=](const Results& results, Report& report) {
    show_ladder(results, report, work, rows);
    show_tokens(results, report, work, rows);
    if (!report.config().plan || plan::levers_of(report.config().options)) return;
    show_frontier(report, work);
    show_grid(report);
  };
  return chapter;
}

}  // namespace
}  // namespace oomlab::capstone

int main(int argc, char** argv) {
  using oomlab::Defaults;
  using namespace oomlab::capstone;
  using namespace oomlab::train;
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  const Defaults huge{.batch = 1, .steps = 2, .budget = 24 * 1024 * kMiB, .devices = 1, .options = {{kSeq, 2048}}};
  const Defaults large{.batch = 13,
                       .steps = 2,
                       .budget = std::size_t(9e9),
                       .devices = 1,
                       .options = {{kSeq, 512}},
                       .published_models = kLargeTextModels,
                       .published = &huge};
  const Defaults full{.model = "bert:4-4-128",
                      .batch = 13,
                      .steps = 6,
                      .budget = 28 * kMiB,
                      .devices = 1,
                      .options = oomlab::plan::with_levers({{kSeq, 96}, kLengths, kText, kModelConfig, kPositions}),
                      .models = kTextModels,
                      .published_models = kGpt2AndBertModels,
                      .published = &large};
  const Defaults quick{
      .model = "bert:2-2-32", .batch = 4, .steps = 3, .budget = kMiB * 6 / 5, .devices = 1, .options = {{kSeq, 32}}};
  return oomlab::run_chapter(argc, argv, full, quick, declare);
}
