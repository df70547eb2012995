// Chapter 17, long sequences: how far one sequence goes, on one device and on several.
//
// The problem   One sequence of 131,072 tokens, llama-3.1-8b, in the textbook's form: 73.8 TB. No micro-batch is smaller
//               than one sequence.
// The idea      What grows with the tokens leaves the device or is shared out, one after the other: scores, logits, what
//               layers keep, what is between the MLP's products, the layers' inputs, and with several devices the rows.
// The bytes     of S tokens in L layers of width C, with E bytes an element: textbook L E S^2 H for the scores alone;
//               with all levers of one device some 24 E S C, whatever L.
// Run it        build/host/bin/17_long_sequences
//               build/host/bin/17_long_sequences --plan --model llama-3.1-8b

#include "../16_capstone/variants.h"
#include "claims.h"

namespace oomlab::long_sequences {
namespace {

Chapter declare(const Config& config) {
  const Work work = capstone::work_of(config);
  const Rungs rungs = rungs_of(work);
  const capstone::Text text =
      std::make_shared<const data::TextSampler>(train::text_for(config, work.spec, /*ragged=*/false));
  Chapter chapter{.title = "long sequences", .variants = {}, .claims = claims_of(), .after = {}};
  for (const Row& row : rungs.rows) chapter.variants.push_back(capstone::variant_of(row, work, text));
  chapter.after = [=](const Results& results, Report& report) {
    for (const std::string& why : rungs.left_out) report.line(why);
    capstone::show_ladder(results, report, work, rungs.rows);
    show_longest(report, work.spec);
  };
  return chapter;
}

}  // namespace
}  // namespace oomlab::long_sequences

int main(int argc, char** argv) {
  using oomlab::Defaults;
  using namespace oomlab::train;
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  const Defaults huge{.batch = 1, .steps = 2, .budget = std::size_t(80e9), .devices = 2, .options = {{kSeq, 131'072}}};
  const Defaults large{.batch = 1,
                       .steps = 2,
                       .budget = std::size_t(24e9),
                       .devices = 2,
                       .options = {{kSeq, 1024}},
                       .published_models = kLargeTextModels,
                       .published = &huge};
  const Defaults full{.model = "llama:4-8-4-128-344",
                      .batch = 1,
                      .steps = 4,
                      .budget = 16 * kMiB,
                      .devices = 2,
                      .options = {{kSeq, 512}, kText, kModelConfig, kPositions},
                      .models = kTextModels,
                      .published_models = kGpt2Models,
                      .published = &large};
  const Defaults quick{
      .model = "llama:2-4-2-32-86", .batch = 1, .steps = 3, .budget = kMiB / 2, .devices = 2, .options = {{kSeq, 64}}};
  return oomlab::run_chapter(argc, argv, full, quick, oomlab::long_sequences::declare);
}
