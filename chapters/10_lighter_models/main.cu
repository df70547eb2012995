// Chapter 10, lighter models: fewer parameters, fewer products, fewer bytes?
//
// The problem   "Take a lighter model." What fills the card, though, is activations, and a model that has few
//               parameters may have many of them.
// The idea      Depthwise separable convolutions, fewer channels, pruned channels, pruned weights, 2:4 sparsity, shared
//               weights, a light network instead of a heavy one: each shrinks another category. Know which.
// The bytes     12 for each parameter (weight, gradient, momentum); for each value that a convolution makes 8: what the
//               convolution computed, and what norm and ReLU made of it. Separable: weights / 8 to 9 in wide layers,
//               values x 2. A zero weight: 12, as any other, and 1 more for its mask. 2:4 in FP16: 9/16 of the weights.
// Run it        build/host/bin/10_lighter_models
//               build/host/bin/10_lighter_models --plan --model resnet50 --batch 32 --input 224

#include "claims.h"

namespace oomlab::lighter_models {
namespace {

Agreement agreement_of(const Model& model) {
  if (model.kind == Model::Kind::apart || model.kind == Model::Kind::lean) return {};  // bit-equal
  return differs_by_design(model.spec.per_pixel ? "another task: a label for each pixel" : "another model");
}

Chapter declare(const Config& config) {
  const std::vector<Model> models = models_of(config);
  require_possible(models, config);
  const nn::NetworkSpec& spec = models.front().spec;
  const auto dataset = std::make_shared<data::Dataset>(train::load_images(config, spec.name, spec.classes));
  const std::size_t side = config.options[kInput], inputs = config.options[kLinear];

  Chapter chapter{.title = "lighter models", .variants = {}, .claims = claims_of(config, models), .after = {}};
  for (const Model& model : models)
    chapter.variants.push_back(
        {.name = model.name,
         .batch = config.batch,
         .predicted = [=](std::size_t batch) { return Training::predicted(*dataset, model, side, batch); },
         .agreement = agreement_of(model),
         .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
           require_classes(model.spec, *dataset);
           return std::make_unique<Training>(context, *dataset, model, side, batch);
         },
         .flops =
             [=](std::size_t batch) {
               return nn::step_flops(model.trained(), batch, {side, side});
             }});
  for (const bool packed : {false, true})
    chapter.variants.push_back(
        {.name = packed ? kPacked16 : kDense16,
         .batch = config.batch,
         .predicted = [=](std::size_t batch) { return LinearInference::predicted(*dataset, inputs, packed, batch); },
         .agreement = differs_by_design("linear layers alone, and no training"),
         .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
           return std::make_unique<LinearInference>(context, *dataset, inputs, packed, batch);
         }});
  chapter.after = [=](const Results& results, Report& report) {
    show_models(results, report, models);
    show_savings(results, report, models);
    show_where_parameters_matter(report, models.front().spec);
    show_pruning(report, *dataset, models);
  };
  return chapter;
}

}  // namespace
}  // namespace oomlab::lighter_models

int main(int argc, char** argv) {
  using oomlab::Defaults;
  using namespace oomlab::lighter_models;
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  const Defaults published{
      .batch = 32, .steps = 3, .budget = (std::size_t(4) << 10) * kMiB, .options = {{kInput, 224}, {kLinear, 512}}};
  const Defaults full{
      .model = "resnet:3-16",
      .batch = 16,
      .steps = 4,
      .budget = 20 * kMiB,
      .options = {{kInput, 32}, {kWidth, 50}, {kChannels, 50}, {kWeights, 90}, {kLinear, 256}, oomlab::train::kData},
      .models = "resnet:3-16, mobilenet:16, unet:2-8, two-branch:8, or a published one",
      .published_models = "resnet18 resnet50 mobilenet-v1 mobilenet-v3-large",
      .published = &published};
  const Defaults quick{
      .model = "resnet:2-8", .batch = 8, .steps = 3, .budget = 1320 << 10, .options = {{kInput, 16}, {kLinear, 64}}};
  return oomlab::run_chapter(argc, argv, full, quick, declare);
}
