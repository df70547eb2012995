// Chapter 15, one GPU for many: the memory that another process has.
//
// The problem   The job fits the card, and still it is out of memory: another process came first, and has the card.
// The idea      A device gives to whoever comes first. So agree: a cap for each process, or equal shares, or a queue in
//               which everybody takes all that it needs, or waits. And give back what is only cached.
// The bytes     neighbour + ours <= budget. The neighbour reserves 75 %, or 40 % with a cap, or half; ours is the
//               peak of a training step. What is cached counts as taken; what a dead process had does not.
// Run it        build/host/bin/15_sharing            build/host/bin/15_sharing --filter 'cache|killed'

#include "claims.h"
#include "harness/largest_batch.h"

namespace oomlab::sharing {
namespace {

Chapter sharing(const Config& config, ForkServer& server) {
  const nn::MlpSpec spec = nn::parse_model(config.model);
  const auto dataset = std::make_shared<data::Dataset>(train::load_images(config, spec));
  const auto need = [=](std::size_t batch) { return ImageTraining::predicted(*dataset, spec, kOptimizer, batch); };
  const std::size_t workspace = round_to_granule(config.workspace);
  const Shares shares{config.budget, checked_sum(need(config.batch).total(), workspace)};
  const auto seen = std::make_shared<AllSeen>();

  // With half of the budget the job must become smaller: the largest batch that fits its share.
  const std::size_t share = shares.cap(Rule::equal_shares);
  const std::size_t smaller =
      find_largest_batch(config.batch, [&](std::size_t batch) {
        return config.budget == kUnlimited || checked_sum(need(batch).total(), workspace) <= share;
      }).batch;

  Chapter chapter;
  chapter.title = "one GPU for many";
  for (const NamedRule& named : kRules) {
    const std::string name = named.name;
    const Rule rule = named.rule;
    const bool changes = rule == Rule::equal_shares;
    Agreement agreement;  // to the bit
    if (changes) agreement = differs_by_design("its share holds a smaller batch only");
    chapter.variants.push_back({
        .name = name,
        .batch = changes ? std::max<std::size_t>(smaller, 1) : config.batch,
        .predicted = need,
        .agreement = agreement,
        .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
          return std::make_unique<ImageTraining>(context, *dataset, spec, kOptimizer, batch);
        },
        .resource = [=, &server](std::size_t budget) -> std::unique_ptr<MemoryResource> {
          return std::make_unique<Beside>(server, rule, shares, budget, (*seen)[name]);
        },
        .flops = [=](std::size_t batch) { return nn::step_flops(spec, batch); },
    });
  }
  chapter.claims = claims_of(shares, seen);
  chapter.after = [=](const Results& results, Report& report) { tell(shares, *seen, results, report); };
  return chapter;
}

}  // namespace
}  // namespace oomlab::sharing

int main(int argc, char** argv) {
  using namespace oomlab;
  share_devices_with_children();
  sharing::ForkServer server(sharing::be_a_neighbour);  // before anything else, and before the first CUDA call
  static const Defaults mlp{.batch = 512, .steps = 3, .budget = std::size_t(1300) << 20};
  const Defaults full{.model = "mlp-activations",
                      .batch = 256,
                      .steps = 6,
                      .budget = std::size_t(88) << 20,
                      .options = {train::kData},
                      .published_models = "mlp",
                      .published = &mlp};
  const Defaults quick{.model = "mlp:1024-4-1024-4-1024-10", .batch = 128, .steps = 2, .budget = std::size_t(5) << 20};
  return run_chapter(argc, argv, full, quick, [&](const Config& config) { return sharing::sharing(config, server); });
}
