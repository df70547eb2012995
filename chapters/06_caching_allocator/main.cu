// Chapter 06, the caching allocator: memory that is free and still not there.
//
// The problem   cudaMalloc for every tensor is slow, because it asks the driver, and cudaFree waits for the device. So
//               frameworks keep what is freed. Then memory is reserved that nobody uses, and a request fails although
//               enough is free, in pieces.
// The idea      Best fit with split and coalesce (best_fit.h, to read first). Then the version that wins
//               (caching_allocator.h): finds a block in constant time, shares memory between streams by events, and
//               puts pieces together by moving pages under addresses. Or plan the whole step in advance (planned.h).
// The bytes     allocated is the same for all of them. reserved = live + what is free in pages that a live block is in.
// Run it        build/host/bin/06_caching_allocator            build/host/bin/06_caching_allocator --filter ours

#include "claims.h"
#include "plan/limits.h"

namespace oomlab::caching_allocator {
namespace {

Chapter caching_allocator(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  if (config.plan &&
      config.memory_steps > kMostPlannedSteps)  // an allocator that moves pages has new addresses each time
    throw UsageError(fmt::format("--memory-steps {}: of this chapter's allocators a plan counts up to {} steps",
                                 config.memory_steps, kMostPlannedSteps));
  const std::size_t seq = config.options[kSeq];
  using Texts = std::vector<data::TextSampler>;  // one for each step of a round
  const auto texts = std::make_shared<std::map<bool, Texts>>();
  for (const bool varying : {false, true})
    for (std::size_t k = 0; k < kRound; ++k)
      (*texts)[varying].push_back(text_for(config, spec, /*ragged=*/false, length_of(k, seq, varying)));

  Chapter chapter;
  chapter.title = "allocators";
  const auto add = [&](const std::string& name, const MakeAllocator& make, bool varying, Agreement agreement) {
    const auto hooks = std::make_shared<StepHooks>();  // of the allocator that was made last, for the work made with it
    chapter.variants.push_back({
        .name = name,
        .batch = config.batch,
        .predicted = [=](std::size_t b) { return Rounds::predicted(spec, seq, b); },
        .agreement = std::move(agreement),
        .make = [=](Context& context, std::size_t b) -> std::unique_ptr<Workload> {
          return std::make_unique<Rounds>(context, spec, texts->at(varying), b, *hooks);
        },
        .resource = [=](std::size_t budget) { return make(budget, *hooks); },
    });
  };
  const std::vector<std::pair<std::string, MakeAllocator>> allocators = {{"cudaMalloc", make_cuda_malloc},
                                                                         {"cudaMallocAsync", make_async},
                                                                         {"cudaMallocAsync, kept", make_async_kept},
                                                                         {"best fit", make_best_fit},
                                                                         {"best fit, emptied", make_best_fit_emptied},
                                                                         {"ours", make_ours},
                                                                         {"ours, planned", make_planned}};
  for (const auto& [name, make] : allocators) add(name, make, true, {});
  for (const auto& [name, make] : allocators)
    if (name == "best fit" || name == "ours, planned")
      add("one length, " + name, make, false, differs_by_design("other texts"));

  const std::size_t budget = std::min(config.budget, std::size_t(64) << 20);  // enough to have pieces in
  const auto add_pieces = [&](const std::string& name, const MakeAllocator& make, std::size_t wanted) {
    chapter.variants.push_back({
        .name = name,
        .batch = config.batch,
        .predicted = [=](std::size_t) { return InPieces::predicted(budget, wanted); },
        .agreement = differs_by_design("requests only, nothing is computed"),
        .make = [=](Context& context, std::size_t) { return std::make_unique<InPieces>(context, budget, wanted); },
        .resource =
            [=](std::size_t limit) {
              StepHooks none;
              return make(limit == kUnlimited ? limit : budget, none);
            },
    });
  };
  add_pieces("in pieces, best fit", make_best_fit, budget / 4);
  add_pieces("in pieces, managed", make_best_fit_managed, budget / 4);
  add_pieces("in pieces, ours", make_ours, budget / 4);
  add_pieces("too large, ours", make_ours, budget / 4 * 3);

  chapter.claims = claims_of(config);
  chapter.after = tell_pieces;
  return chapter;
}

}  // namespace
}  // namespace oomlab::caching_allocator

int main(int argc, char** argv) {
  using namespace oomlab;
  const Defaults published{.batch = 8, .steps = 6, .budget = std::size_t(24) << 30, .options = {{train::kSeq, 512}}};
  const Defaults full{.model = "bytes-gpt",
                      .batch = 2,
                      .steps = 5,
                      .budget = std::size_t(64) << 20,
                      .options = {{train::kSeq, 128}, train::kText, train::kModelConfig},
                      .models = train::kTextModels,
                      .published_models = oomlab::train::kGpt2AndBertModels,
                      .published = &published};
  const Defaults quick{
      .model = "gpt:2-2-16", .batch = 4, .steps = 1, .budget = std::size_t(40) << 20, .options = {{train::kSeq, 16}}};
  return run_chapter(argc, argv, full, quick, caching_allocator::caching_allocator);
}
