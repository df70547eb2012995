// The pipelines that are known: ours, and public ones as their components' config.json say, with what the libraries
// take where it is silent. Sources are the repositories on huggingface.co of the comment in front of each.

#include <stdexcept>
#include <string>

#include "plan/image/spec.h"

namespace oomlab::image {

namespace {

// CLIP ViT-L/14's text model (openai/clip-vit-large-patch14).
TextEncoderSpec clip_large(const char* name) {
  return {.name = name, .vocabulary = 49408, .positions = 77, .width = 768, .layers = 12, .heads = 12, .mlp = 3072};
}

// One transformer layer a level, but none at the lowest. (Not {1, 1, 1, 0}: with AVX-512, GCC 12 makes 1, 1, 1, 1 of it.)
std::vector<std::uint64_t> all_but_the_lowest(std::uint64_t levels) {
  std::vector<std::uint64_t> transformers;
  while (transformers.size() + 1 < levels) transformers.push_back(1);
  transformers.push_back(0);
  return transformers;
}

AutoencoderSpec latent_autoencoder(double scaling) { return {.channels = {128, 256, 512, 512}, .scaling = scaling}; }

// Trained in this repository: common/data/digit_images.
PipelineSpec digits() {
  return {
      .name = "digits",
      .title = "digits of this course",
      .text =
          {{.name = "text_encoder", .vocabulary = 27, .positions = 8, .width = 32, .layers = 2, .heads = 4, .mlp = 64}},
      .denoiser = UNetSpec{.channels = {32, 64},
                           .transformers = {1, 1},
                           .heads = {4, 4},
                           .layers_per_block = 1,
                           .context = 32,
                           .groups = 8},
      .autoencoder = {.image_channels = 1, .channels = {16, 32, 32}, .layers_per_block = 1, .groups = 8, .scaling = 0.8470},
      .size = 32,
      .steps = 8,
      .guidance = 3};
}

// stable-diffusion-v1-5/stable-diffusion-v1-5
PipelineSpec stable_diffusion_1() {
  return {.name = "sd-1.5",
          .title = "Stable Diffusion 1.5",
          .text = {clip_large("text_encoder")},
          .denoiser = UNetSpec{.channels = {320, 640, 1280, 1280},
                               .transformers = all_but_the_lowest(4),
                               .heads = {8, 8, 8, 8},
                               .context = 768},
          .autoencoder = latent_autoencoder(0.18215),
          .size = 512,
          .steps = 50,
          .guidance = 7.5};
}

// stabilityai/stable-diffusion-2-1; of OpenCLIP ViT-H/14's 24 layers the first 23
PipelineSpec stable_diffusion_2() {
  return {.name = "sd-2.1",
          .title = "Stable Diffusion 2.1",
          .text = {{.name = "text_encoder",
                    .vocabulary = 49408,
                    .positions = 77,
                    .width = 1024,
                    .layers = 23,
                    .heads = 16,
                    .mlp = 4096,
                    .activation = TextActivation::gelu}},
          .denoiser = UNetSpec{.channels = {320, 640, 1280, 1280},
                               .transformers = all_but_the_lowest(4),
                               .heads = {5, 10, 20, 20},
                               .context = 1024,
                               .linear_projection = true},
          .autoencoder = latent_autoencoder(0.18215),
          .size = 768,
          .steps = 50,
          .guidance = 7.5};
}

// stabilityai/stable-diffusion-xl-base-1.0; the second encoder is OpenCLIP ViT-bigG/14's
PipelineSpec stable_diffusion_xl() {
  return {.name = "sdxl",
          .title = "Stable Diffusion XL 1.0",
          .text = {clip_large("text_encoder"),
                   {.name = "text_encoder_2",
                    .vocabulary = 49408,
                    .positions = 77,
                    .width = 1280,
                    .layers = 32,
                    .heads = 20,
                    .mlp = 5120,
                    .activation = TextActivation::gelu,
                    .projection = 1280}},
          .denoiser = UNetSpec{.channels = {320, 640, 1280},
                               .transformers = {0, 2, 10},
                               .heads = {5, 10, 20},
                               .context = 2048,
                               .linear_projection = true,
                               .mid_transformers = 10,
                               .added_condition = 2816,
                               .added_time = 256},
          .autoencoder = latent_autoencoder(0.13025),
          .size = 1024,
          .steps = 50,
          .guidance = 5};
}

// black-forest-labs/FLUX.1-dev and FLUX.1-schnell; the second encoder is google/t5-v1_1-xxl's
PipelineSpec flux(bool dev) {
  AutoencoderSpec autoencoder = latent_autoencoder(0.3611);
  autoencoder.latent_channels = 16;
  autoencoder.shift = 0.1159;
  autoencoder.quant_convolutions = false;
  return {.name = dev ? "flux.1-dev" : "flux.1-schnell",
          .title = dev ? "Flux.1 dev" : "Flux.1 schnell",
          .text = {clip_large("text_encoder"),
                   {.name = "text_encoder_2",
                    .kind = TextKind::t5,
                    .vocabulary = 32128,
                    .positions = dev ? 512u : 256u,
                    .width = 4096,
                    .layers = 24,
                    .heads = 64,
                    .mlp = 10240,
                    .activation = TextActivation::gated_gelu,
                    .head_depth = 64,
                    .relative_buckets = 32}},
          .denoiser = FluxSpec{.width = 3072,
                               .heads = 24,
                               .double_blocks = 19,
                               .single_blocks = 38,
                               .context = 4096,
                               .pooled = 768,
                               .in_channels = 64,
                               .guidance = dev},
          .autoencoder = autoencoder,
          .size = 1024,
          .steps = dev ? 50u : 4u,
          .guidance = dev ? 3.5 : 0};
}

}  // namespace

const PipelineSpec& pipeline_named(std::string_view name) {
  static const std::array<PipelineSpec, kPipelines.size()> all{
      digits(), stable_diffusion_1(), stable_diffusion_2(), stable_diffusion_xl(), flux(true), flux(false)};
  if (name == "flux.1") name = "flux.1-dev";
  std::string known;
  for (const PipelineSpec& spec : all) {
    if (spec.name == name) return spec;
    known += (known.empty() ? "" : ", ") + spec.name;
  }
  throw std::invalid_argument("'" + std::string(name) + "' is no pipeline that makes images; known: " + known);
}

}  // namespace oomlab::image
