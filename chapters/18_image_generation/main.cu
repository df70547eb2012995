// Chapter 18, image generation: one model at a time.
//
// The problem   A picture from a word takes a text encoder, a denoiser that runs once a step, and a decoder of pixels. All
//               resident in FP32, SDXL's weights alone are 13.7 GB; and the largest maps are the decoder's.
// The idea      No two of the models work at the same time: each comes when its turn comes, or layer by layer. What then
//               counts is the largest stage, and each stage has levers of its own: guidance in two passes, attention in
//               tiles, the decoder by images, strips or tiles, the denoiser in fewer bits. Beside these, one row trains: a
//               LoRA on the denoiser's attention.
// The bytes     all resident: all weights + the largest stage's activations. One model at a time: the largest stage's
//               weights + activations. Layer by layer: the largest layer's. LoRA of rank r, in FP32: the denoiser's
//               weights, 16 r (in + out) for each adapter, and the activations that its backward pass reads.
// Run it        build/host/bin/18_image_generation
//               build/host/bin/18_image_generation --plan --model sdxl

#include "claims.h"

namespace oomlab::image_generation {
namespace {

Chapter declare(const Config& config) {
  const PipelineSpec& spec = pipeline_of(config.model);
  check_images_file(config);
  const auto images = std::make_shared<AllImages>();
  const std::vector<Row> rows = rows_of(spec, baseline_of(config, spec));

  Chapter chapter{.title = "image generation", .variants = {}, .claims = claims_of(), .after = {}};
  for (const Row& row : rows) {
    const auto with_batch = [=](std::size_t batch) {
      Row same = row;
      same.run.batch = batch;
      return same;
    };
    chapter.variants.push_back(
        {.name = row.name,
         .batch = config.batch,
         .predicted = [=, &spec](std::size_t batch) { return predicted(spec, with_batch(batch)); },
         .agreement = row.agreement,
         .make = [=, &spec, seed = config.options[kSeed]](Context& context,
                                                          std::size_t batch) -> std::unique_ptr<Workload> {
           if (row.trains) return make_lora_training(context, config, spec, with_batch(batch).run);
           return make_generation(context, spec, with_batch(batch), wishes_of(batch, seed), images);
         },
         .flops = [=, &spec](std::size_t batch) -> std::optional<double> {
           return 2 * multiply_adds(spec, with_batch(batch));
         },
         .dtype = row.run.dtype,
         .predicted_on_host = [=, &spec](std::size_t batch) { return predicted_on_host(spec, with_batch(batch)); }});
  }
  chapter.after = [=, &spec](const Results& results, Report& report) {
    show_stages(results, report, spec, rows);
    show_images(results, report, spec, rows, *images);
  };
  return chapter;
}

}  // namespace
}  // namespace oomlab::image_generation

int main(int argc, char** argv) {
  using oomlab::Defaults;
  using namespace oomlab::image_generation;
  constexpr std::size_t kGiB = std::size_t(1) << 30;
  const Defaults flux{.batch = 1, .steps = 2, .budget = 24 * kGiB};
  const Defaults large{.batch = 1,
                       .steps = 2,
                       .budget = 8 * kGiB,
                       .published_models = "flux.1 flux.1-dev flux.1-schnell",
                       .published = &flux};
  const Defaults published{.batch = 1, .steps = 2, .budget = 4 * kGiB, .published_models = "sdxl", .published = &large};
  const Defaults full{.model = "digits",
                      .batch = 8,
                      .steps = 2,
                      .budget = 6656 << 10,
                      .options = {kSize, kDenoiserSteps, kTile, {kSeed, 1}, kImages},
                      .models = "digits, tiny (random weights), or a published one",
                      .published_models = "sd-1.5 sd-2.1",
                      .published = &published};
  const Defaults quick{.model = "digits", .batch = 2, .steps = 2, .budget = 5 << 20, .options = {{kDenoiserSteps, 2}}};
  return oomlab::run_chapter(argc, argv, full, quick, declare);
}
