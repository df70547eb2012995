// Chapter 00, anatomy of an OOM: where do the bytes go?
//
// The problem   "CUDA out of memory. Tried to allocate 128.00 MiB" names the allocation that failed, which is hardly
//               ever the one that is to blame.
// The idea      Charge every byte to one of six categories, predict each of them before the run, and compare three
//               figures at every phase of a step: allocated (what tensors asked for), reserved (what the allocator
//               holds), device used (what the driver, and nvidia-smi, show).
// The bytes     parameters 4P + gradients 4P + optimizer 8P (AdamW) or 0 (SGD)
//               + activations, linear in the batch + the cuBLAS workspace + data, one byte per pixel.
// Run it        build/host/bin/00_anatomy            build/host/bin/00_anatomy --trace t.json --snapshot s.pickle

#include "claims.h"
#include "inference.h"

namespace oomlab::anatomy {
namespace {

using train::ImageTraining;

Chapter declare(const Config& config) {
  const nn::MlpSpec spec = nn::parse_model(config.model);
  const auto dataset = std::make_shared<data::Dataset>(train::load_images(config, spec));

  Chapter chapter;
  chapter.title = "where the bytes go";
  for (const auto kind : {nn::UpdateRule::adamw, nn::UpdateRule::sgd}) {
    chapter.variants.push_back({
        .name = nn::name_of(kind),
        .batch = config.batch,
        .predicted = [=](std::size_t batch) { return ImageTraining::predicted(*dataset, spec, kind, batch); },
        .agreement = differs_by_design("another optimizer takes other steps"),
        .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
          return std::make_unique<ImageTraining>(context, *dataset, spec, kind, batch);
        },
        .flops = [=](std::size_t batch) { return nn::step_flops(spec, batch); },
    });
  }
  chapter.variants.push_back({
      .name = "inference",
      .batch = config.batch,
      .predicted = [=](std::size_t batch) { return Inference::predicted(*dataset, spec, batch); },
      .agreement = differs_by_design("nothing is learned"),
      .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
        return std::make_unique<Inference>(context, *dataset, spec, batch);
      },
  });
  chapter.claims = claims_of(spec);
  chapter.after = tell;
  return chapter;
}

}  // namespace
}  // namespace oomlab::anatomy

int main(int argc, char** argv) {
  const oomlab::Defaults full{
      .model = "mlp", .batch = 32, .steps = 10, .budget = std::size_t(512) << 20, .options = {oomlab::train::kData}};
  const oomlab::Defaults quick{.model = "mlp:64-512-256-10", .batch = 32, .steps = 5, .budget = std::size_t(2) << 20};
  return oomlab::run_chapter(argc, argv, full, quick, oomlab::anatomy::declare);
}
