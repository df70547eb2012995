// Chapter 01, batch reduction: the first advice that everybody gives.
//
// The problem   The batch does not fit the budget.
// The idea      Activations are linear in the batch, so halve it until it fits, or let a finder search for the largest
//               batch that fits: doubling, then bisection, recovering from each out-of-memory on the way.
// The bytes     peak = fixed + slope x batch. Fixed: parameters, gradients, optimizer state, workspace, data.
//               Slope: the input, the label and the activations of one sample. The smaller the slope beside the fixed
//               part, the less a smaller batch helps. Both are fitted to the measurements, and printed: for a model of
//               mostly activations, and for one of mostly weights.
// Run it        build/host/bin/01_batch_reduction
//               build/host/bin/01_batch_reduction --model mlp-small,mlp:64-10 --batch 2048 --budget 3MiB

#include "claims.h"

namespace oomlab::batch_reduction {
namespace {

constexpr std::size_t kRows = 4;  // of a model: batch, batch/2, batch/4, batch/8

/// --model A,B: models side by side.
std::vector<nn::MlpSpec> models_of(const Config& config) {
  std::vector<nn::MlpSpec> specs;
  for (const std::string& name : split(config.model, ',')) {
    for (const nn::MlpSpec& known : specs)
      if (known.name == name) throw UsageError(fmt::format("--model names '{}' twice", name));
    specs.push_back(nn::parse_model(name));
  }
  return specs;
}

Chapter declare(const Config& config) {
  const std::vector<nn::MlpSpec> specs = models_of(config);
  std::shared_ptr<data::Dataset> dataset;
  for (const nn::MlpSpec& spec : specs)  // each must have classes enough
    dataset = std::make_shared<data::Dataset>(train::load_images(config, spec));

  Chapter chapter;
  chapter.title = "smaller batches";
  std::vector<Model> models;
  std::size_t smallest = config.batch;
  for (const nn::MlpSpec& spec : specs) {
    const Model model{spec,
                      [=](std::size_t batch) { return ImageTraining::predicted(*dataset, spec, kOptimizer, batch); }};
    std::size_t batch = config.batch;
    for (std::size_t i = 0; i < kRows && batch > 0; ++i, batch /= 2) {
      const char* const why = !models.empty() ? (i == 0 ? "another model" : "")
                              : i == 1        ? "a gradient of fewer samples is another gradient"
                                              : "";
      chapter.variants.push_back({
          .name = model.row(batch),
          .batch = batch,
          .predicted = model.predicted,
          .agreement = differs_by_design(why),
          .make = [=](Context& context, std::size_t size) -> std::unique_ptr<Workload> {
            return std::make_unique<ImageTraining>(context, *dataset, spec, kOptimizer, size);
          },
          .flops = [=](std::size_t size) { return nn::step_flops(spec, size); },
      });
      smallest = batch;
    }
    models.push_back(model);
  }
  chapter.claims = claims_of(models, config, smallest);
  chapter.after = [=](const Results& results, Report& report) { tell(models, *dataset, results, report); };
  return chapter;
}

}  // namespace
}  // namespace oomlab::batch_reduction

int main(int argc, char** argv) {
  // The perceptron of chapter 00, which is larger than this chapter's two.
  static const oomlab::Defaults mlp{.batch = 512, .steps = 3, .budget = std::size_t(720) << 20};
  const oomlab::Defaults full{.model = "mlp-activations,mlp-weights",
                              .batch = 512,
                              .steps = 6,
                              .budget = std::size_t(64) << 20,
                              .options = {oomlab::train::kData},
                              .published_models = "mlp",
                              .published = &mlp};
  const oomlab::Defaults quick{
      .model = "mlp:1024-4-1024-4-1024-10,mlp:64-512-256-10", .batch = 128, .steps = 3, .budget = std::size_t(2) << 20};
  return oomlab::run_chapter(argc, argv, full, quick, oomlab::batch_reduction::declare);
}
