// Chapter 13, the optimizer's memory: what is left when activations are gone.
//
// The problem   A parameter of 4 bytes has a gradient of 4 and AdamW's two moments of 8: 16 bytes. With checkpointing
//               and the lean form of a step, that is most of the memory.
// The idea      Moments in 8 bits, or in factors; gradients that are used at once; BF16 weights, rounded at random; or
//               all of it in host memory, updated by the processor.
// The bytes     per parameter, weights + gradients + state: AdamW 4 + 4 + 8, 8-bit 4 + 4 + 2.03, in the backward pass
//               4 + one layer's + 8, Adafactor 4 + 4 + ~0, in BF16 with 8 bits in the backward pass 2 + ~0 + 2.03,
//               processor 4 + two layers' + 0.
// Run it        build/host/bin/13_optimizer_memory
//               build/host/bin/13_optimizer_memory --plan --model llama-3.1-8b

#include "claims.h"

namespace oomlab::optimizer_memory {
namespace {

Chapter declare(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  Task task = task_of(config, spec);
  task.text = std::make_shared<const data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const std::vector<Recipe> all = recipes(config);
  const auto learning = std::make_shared<Learning>(config, task, all, config.options.find(kLearn).value_or(0));
  const auto seen = std::make_shared<Seen>();
  const auto with_batch = [task](std::size_t batch) {
    Task same = task;
    same.batch = batch;
    if (batch % same.request.micro_batches != 0) same.request.micro_batches = 1;
    return same;
  };

  Chapter chapter{
      .title = "the optimizer's memory", .variants = {}, .claims = claims_of(config, learning), .after = {}};
  for (const Recipe& recipe : all)
    chapter.variants.push_back(
        {.name = recipe.name,
         .batch = config.batch,
         .predicted = [=](std::size_t batch) { return predicted(with_batch(batch), recipe); },
         .agreement = agreement_of(recipe),
         .make =
             [=](Context& context, std::size_t batch) {
               return with_type_of(recipe, [&]<class T>(T) -> std::unique_ptr<Workload> {
                 try {
                   return std::make_unique<Training<T>>(context, with_batch(batch), recipe, &(*seen)[recipe.name]);
                 } catch (const UsageError& error) {  // of a row that nobody asked for
                   throw VariantSkipped(error.what());
                 }
               });
             },
         .flops = [=](std::size_t batch) { return flops_of(with_batch(batch), recipe); },
         .dtype = recipe.dtype,
         .predicted_on_host = [=](std::size_t batch) { return predicted_on_host(with_batch(batch), recipe); }});
  chapter.after = [=](const Results& results, Report& report) {
    show_state(results, report, task, all, *seen);
    show_cards(results, report);
    show_losses(results, report, *learning);
  };
  return chapter;
}

}  // namespace
}  // namespace oomlab::optimizer_memory

int main(int argc, char** argv) {
  using oomlab::Defaults;
  using namespace oomlab::optimizer_memory;
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  const Defaults huge{.batch = 1, .steps = 2, .budget = 24 * 1024 * kMiB, .options = {{kSeq, 2048}}};
  const Defaults large{.batch = 8,
                       .steps = 2,
                       .budget = 6 * 1024 * kMiB,
                       .options = {{kSeq, 512}},
                       .published_models = kLargeTextModels,
                       .published = &huge};
  const Defaults full{
      .model = "gpt:4-4-256",
      .batch = 2,
      .steps = 6,
      .budget = 48 * kMiB,
      .options = with_own_levers({{kSeq, 64}, kText, kModelConfig, kMicroBatch, kClip, kLossScale, kLearn}),
      .models = kTextModels,
      .published_models = kGpt2AndBertModels,
      .published = &large};
  const Defaults quick{.model = "gpt:2-2-64", .batch = 2, .steps = 3, .budget = 3 * kMiB, .options = {{kSeq, 16}}};
  return oomlab::run_chapter(argc, argv, full, quick, declare);
}
