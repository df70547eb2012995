// Chapter 14, adapters: fine-tuning without the optimizer's state of what is not changed.
//
// The problem   Full training keeps 16 bytes for each parameter: weights, gradients, two moments. For most models that
//               is more than a card has, before the first activation.
// The idea      The weights W stay as they are. Beside each, two thin matrices of rank r are trained (LoRA):
//               y = x W^T + s (x A^T) B^T. W needs no gradient and no optimizer, and may be stored in 4 bits (QLoRA).
// The bytes     of a matrix [out, in]: in FP32 full 16 out in, LoRA 4 out in + 16 r (out + in), QLoRA 0.52 out in + the
//               same. Activations stay: for A's gradient x is kept, as it was for W's. Only a frozen matrix without an
//               adapter keeps none.
// Run it        build/host/bin/14_adapters
//               build/host/bin/14_adapters --plan --model llama-3.1-8b

#include "learning.h"

namespace oomlab::adapters {
namespace {

using inference::kWeights;

std::unique_ptr<Workload> make(Context& context, const Task& task, const Recipe& recipe) {
  return with_element_of(precision_of(recipe.tuning.dtype), [&]<class T>(T) -> std::unique_ptr<Workload> {
    if (recipe.use == Recipe::Use::train) return std::make_unique<Tuning<T>>(context, task, recipe);
    return std::make_unique<Using<T>>(context, task, recipe);
  });
}

Chapter declare(const Config& config) {
  const nn::TransformerSpec spec = decoder_of(config);
  Task task{spec, nullptr, nullptr, config.batch, config.options[kSeq], few_activations(spec)};
  task.source = std::make_shared<const Source>(spec, config.options.find(kWeights));
  task.text = std::make_shared<const data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const std::vector<Recipe> all = recipes(dtype_of(config, spec), form_of_adapters(config));
  const auto with_batch = [task](std::size_t batch) {
    Task same = task;
    same.batch = batch;
    return same;
  };

  Chapter chapter{.title = "adapters", .variants = {}, .claims = claims_of(), .after = {}};
  for (const Recipe& recipe : all) {
    Variant variant{.name = recipe.name, .batch = config.batch, .predicted = {}, .agreement = {}, .make = {}};
    variant.predicted = [=](std::size_t batch) { return predicted(with_batch(batch), recipe); };
    if (recipe.name != kFull) variant.agreement = differs_by_design("something else is trained, or nothing");
    variant.make = [=](Context& context, std::size_t batch) { return make(context, with_batch(batch), recipe); };
    variant.dtype = recipe.tuning.dtype;
    chapter.variants.push_back(std::move(variant));
  }
  chapter.after = [=, dtype = dtype_of(config, spec)](const Results& results, Report& report) {
    show_state(results, report, task, all);
    const auto steps = config.options.find(kLearn);
    if (steps && !config.plan) report.table(losses_of_ways(config, task, dtype, *steps));
  };
  return chapter;
}

}  // namespace
}  // namespace oomlab::adapters

int main(int argc, char** argv) {
  using oomlab::Defaults;
  using namespace oomlab::adapters;
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  const Defaults huge{.batch = 1, .steps = 2, .budget = 24 * 1024 * kMiB, .options = {{kSeq, 2048}}};
  const Defaults large{.batch = 4,
                       .steps = 2,
                       .budget = 4 * 1024 * kMiB,
                       .options = {{kSeq, 512}},
                       .published_models = "llama-3.2-1b llama-3.1-8b llama-3.1-70b qwen2.5-7b mistral-7b",
                       .published = &huge};
  const Defaults full{
      .model = "llama:4-8-4-256-688",
      .batch = 2,
      .steps = 4,
      .budget = 32 * kMiB,
      .options = oomlab::plan::with_levers(
          {{kSeq, 64}, {kRank, 8}, {kAlpha, 16}, {kTargets, "all"}, kLearn, kWeights, kModelConfig, kText},
          {"03_mixed_precision"}),
      .models = "bytes-llama, gpt2, llama-3.1-8b or llama:4-8-4-256-688",
      .published_models = kGpt2Models,
      .published = &large};
  const Defaults quick{
      .model = "llama:2-4-2-64-172", .batch = 2, .steps = 3, .budget = 2 * kMiB, .options = {{kSeq, 16}, {kRank, 4}}};
  return oomlab::run_chapter(argc, argv, full, quick, declare);
}
