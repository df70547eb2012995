// What fit says of pipelines that make images.

#include <gtest/gtest.h>

#include <sstream>

#include "../../bench/fitting/answer.h"
#include "../../bench/fitting/list.h"
#include "../../bench/fitting/words.h"
#include "asked.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;
using enum PipelineLever;

PipelineAnswer answered(const std::string& words) { return answer_pipeline(asked(words)); }

using DiffusersRun = image::DiffusersRun;

image::DiffusersPeaks peaks_of(const char* name, DiffusersRun run) {
  run.assumed_workspace = true;
  return image::diffusers_peaks(image::pipeline_named(name), run);
}

// Stages are those of plan/image/diffusers.h, with cuDNN's workspaces as they are assumed.
TEST(FitPipelines, StagesAreDiffusersAndTheFullestIsNeeded) {
  const PipelineWay way = answered("--model sdxl --batch 2 --gpu l4").as_is;
  const image::DiffusersPeaks peaks = peaks_of("sdxl", {.batch = 2, .size = 1024});
  EXPECT_EQ(way.peaks.text.total(), peaks.text.total());
  EXPECT_EQ(way.peaks.denoiser.total(), peaks.denoiser.total());
  EXPECT_EQ(way.peaks.decoder.total(), peaks.decoder.total());
  EXPECT_GT(way.peaks.decoder.workspace, 0u);
  EXPECT_EQ(way.live(), std::max({peaks.text.total(), peaks.denoiser.total(), peaks.decoder.total()}));
  EXPECT_EQ(way.bytes().total(), way.live());
  EXPECT_EQ(parameters_of(*asked("--model sdxl --gpu l4").pipeline), 123060480u + 694659840u + 2567463684u + 83653863u);
}

// What is switched on reaches the run.
TEST(FitPipelines, EachWordIsDiffusersOwn) {
  using Offload = DiffusersRun::Offload;
  const DiffusersRun sdxl{.batch = 2, .size = 2048}, flux{.batch = 2, .size = 2048, .dtype = DType::bf16};
  const auto expect = [](const char* name, const char* with, DiffusersRun run, auto... set) {
    (set(run), ...);
    const std::string words = std::string("--model ") + name + " --batch 2 --size 2048 --gpu h100-sxm --with " + with;
    const PipelineWay way = answered(words).as_is;
    const image::DiffusersPeaks peaks = peaks_of(name, run);
    EXPECT_EQ(way.peaks.text.total(), peaks.text.total()) << words;
    EXPECT_EQ(way.peaks.denoiser.total(), peaks.denoiser.total()) << words;
    EXPECT_EQ(way.peaks.decoder.total(), peaks.decoder.total()) << words;
    EXPECT_EQ(way.cost.host, image::diffusers_cost(image::pipeline_named(name), run).host) << words;
  };
  expect("sdxl", "enable_vae_slicing", sdxl, [](DiffusersRun& run) { run.vae_slicing = true; });
  expect("sdxl", "enable_vae_tiling", sdxl, [](DiffusersRun& run) { run.vae_tiling = true; });
  expect("sdxl", "sdxl-vae-fp16-fix", sdxl, [](DiffusersRun& run) { run.vae_fp16 = true; });
  expect("sdxl", "two-passes", sdxl, [](DiffusersRun& run) { run.guidance_passes = 2; });
  expect("sdxl", "enable_model_cpu_offload", sdxl, [](DiffusersRun& run) { run.offload = Offload::model; });
  expect("sdxl", "enable_sequential_cpu_offload", sdxl, [](DiffusersRun& run) { run.offload = Offload::sequential; });
  expect("sdxl", "8-bits", sdxl, [](DiffusersRun& run) { run.denoiser_bits = 8; });
  expect("flux.1-dev", "t5-8-bits", flux, [](DiffusersRun& run) { run.text_bits = 8; });
  expect("flux.1-dev", "4-bits,t5-4-bits", flux, [](DiffusersRun& run) { run.denoiser_bits = run.text_bits = 4; });
  EXPECT_EQ(answered("--model sd-1.5 --gpu t4 --attn-implementation eager").as_is.peaks.denoiser.total(),
            peaks_of("sd-1.5", {.size = 512, .attention = DiffusersRun::Attention::eager}).denoiser.total());
  EXPECT_EQ(answered("--model sd-1.5 --gpu t4 --attn-implementation eager --with enable_attention_slicing")
                .as_is.peaks.denoiser.total(),
            peaks_of("sd-1.5", {.size = 512, .attention = DiffusersRun::Attention::sliced}).denoiser.total());
  EXPECT_EQ(answered("--model sd-1.5 --gpu t4 --attn-implementation eager --with sdpa").as_is.peaks.denoiser.total(),
            peaks_of("sd-1.5", {.size = 512}).denoiser.total());
}

TEST(FitPipelines, ChangesAreTheFewestThatCostLeast) {
  for (const auto& [words, levers] : {std::pair("--model sdxl --gpu rtx3070", PipelineLevers{model_cpu}),
                                      {"--model sdxl --gpu rtx3060 --batch 8", {vae_slicing, vae_half}},
                                      {"--model sdxl --gpu rtx3070 --size 2048", {model_cpu, vae_tiling}},
                                      {"--model sd-1.5 --memory 6GB --attn-implementation eager --size 1024", {sdpa}},
                                      {"--model flux --memory 8GB", {sequential_cpu}},
                                      {"--model flux --gpu t4", {model_cpu, eight_bits}},
                                      {"--model flux --gpu t4 --without 8-bits", {model_cpu, four_bits}},
                                      {"--model sdxl --gpu rtx3080", {vae_half}}}) {
    const Question question = asked(words);
    const PipelineAnswer found = answer_pipeline(question);
    ASSERT_TRUE(!found.as_is.fits() && found.changed) << words;
    EXPECT_EQ(found.changed->levers, levers) << first_line(question, found);
    EXPECT_TRUE(found.changed->fits()) << words;
    EXPECT_FALSE(found.smallest) << words;
  }
  // What was switched on stays on, and nothing is lost by asking for what was proposed.
  const PipelineAnswer proposed = answered("--model sdxl --gpu rtx3070 --with enable_model_cpu_offload");
  EXPECT_TRUE(proposed.as_is.fits());
  EXPECT_EQ(proposed.as_is.live(), answered("--model sdxl --gpu rtx3070").changed->live());
}

TEST(FitPipelines, WhereNothingFitsTheLeastIsSaid) {
  const Question question = asked("--model sd-1.5 --memory 2GB --batch 64 --size 1024");
  const PipelineAnswer found = answer_pipeline(question);
  ASSERT_TRUE(found.smallest && !found.changed);
  EXPECT_FALSE(found.smallest->fits());
  EXPECT_LT(found.smallest->needed(), found.as_is.needed());
  EXPECT_NE(first_line(question, found).find(gib(found.smallest->needed())), std::string::npos);
  // Host memory that is not there is no way out.
  EXPECT_FALSE(answered("--model flux --memory 8GB --host-memory 16GB").changed);
  EXPECT_TRUE(answered("--model flux --memory 8GB --host-memory 64GB").changed);
}

TEST(FitPipelines, WhatLeavesNothingForTheContextDoesNotFit) {
  Question question = asked("--model sdxl --gpu l4");
  question.room.memory = answer_pipeline(question).as_is.needed() + question.room.reserve;
  EXPECT_TRUE(answer_pipeline(question).as_is.fits());
  --question.room.memory;
  const PipelineAnswer found = answer_pipeline(question);
  EXPECT_FALSE(found.as_is.fits());
  EXPECT_TRUE(first_line(question, found).starts_with("too close: "));
}

TEST(FitPipelines, NothingLargerThanTheLargestFits) {
  const auto most = answered("--model sdxl --gpu rtx4090 --largest size").largest;
  ASSERT_TRUE(most && most->fits());
  EXPECT_FALSE(answered("--model sdxl --gpu rtx4090 --size " + std::to_string(most->size + 32)).as_is.fits());
  const auto many = answered("--model sdxl --gpu rtx4090 --largest batch --with enable_vae_slicing").largest;
  ASSERT_TRUE(many && many->fits());
  const std::string next = std::to_string(many->batch + 1);
  EXPECT_FALSE(answered("--model sdxl --gpu rtx4090 --with enable_vae_slicing --batch " + next).as_is.fits());
  EXPECT_FALSE(answered("--model flux --gpu t4 --largest batch").largest);
}

TEST(FitPipelines, WordsStayWithinTheirLinesInBothLanguages) {
  for (const char* const name : {"sd-1.5", "sd-2.1", "sdxl", "flux.1-dev", "flux.1-schnell"})
    for (const char* const card : {" --memory 2GB", " --memory 6GB", " --gpu t4", " --gpu rtx4090"})
      for (const char* const more : {"", " --batch 8", " --size 2048", " --batch 4 --size 1536", " --largest size"}) {
        Question question = asked(std::string("--model ") + name + card + more);
        const PipelineAnswer found = answer_pipeline(question);
        for (const bool chinese : {false, true}) {
          question.chinese = chinese;
          std::istringstream in(first_words(question, found));
          std::size_t lines = 0;
          for (std::string line; std::getline(in, line); ++lines) EXPECT_LE(columns_of(line), kMostColumns) << line;
          EXPECT_LE(lines, kMostLines) << first_words(question, found);
          EXPECT_GE(lines, 10u);
        }
      }
}

TEST(FitPipelines, TheCodeSwitchesOnWhatIsProposed) {
  const auto said = [](const std::string& words) {
    const Question question = asked(words);
    return first_words(question, answer_pipeline(question));
  };
  const std::string cpu = said("--model sdxl --gpu rtx3070 --size 2048");
  for (const char* const part : {"pipe.enable_model_cpu_offload()", "pipe.vae.enable_tiling()", "--medvram",
                                 "VAE Decode (Tiled)", "torch.float16", "height=2048"})
    EXPECT_NE(cpu.find(part), std::string::npos) << cpu;
  EXPECT_EQ(cpu.find("pipe.to("), std::string::npos) << cpu;
  const std::string sliced = said("--model sdxl --gpu rtx3070 --batch 4");
  EXPECT_NE(sliced.find("pipe.vae.enable_slicing()"), std::string::npos) << sliced;
  const std::string bits = said("--model flux --gpu t4 --without 8-bits");
  for (const char* const part : {"load_in_4bit", "quantization_config=bits", "\"transformer\"", "nf4"})
    EXPECT_NE(bits.find(part), std::string::npos) << bits;
  const std::string both = said("--model flux --gpu h100-sxm --with 8-bits,t5-8-bits");
  EXPECT_NE(both.find("components_to_quantize=[\"transformer\", \"text_encoder_2\"]"), std::string::npos) << both;
}

TEST(FitPipelines, PeoplesNamesAreKnown) {
  for (const auto& [called, name] : {std::pair("SDXL", "sdxl"),
                                     {"stabilityai/stable-diffusion-xl-base-1.0", "sdxl"},
                                     {"flux", "flux.1-dev"},
                                     {"black-forest-labs/FLUX.1-schnell", "flux.1-schnell"},
                                     {"sd1.5", "sd-1.5"},
                                     {"stable-diffusion-2-1", "sd-2.1"}})
    EXPECT_EQ(asked(std::string("--gpu t4 --task image --model ") + called).pipeline->name, name) << called;
  const auto list = list_of({"--list"});
  for (const char* const part : {"flux.1-schnell", "enable_vae_tiling", "size"})
    EXPECT_NE(list->find(part), std::string::npos);
}

TEST(FitPipelines, WhatIsRefusedIsRefusedInOneLine) {
  for (const auto& [words, part] :
       {std::pair("--model sd3 --gpu t4", "sdxl"),
        {"--model sdxl", "--gpu"},
        {"--model sdxl --gpu t4 --task train", "--task image"},
        {"--model gpt2 --gpu t4 --task image", "sdxl"},
        {"--model resnet50 --gpu t4 --size 512", "sdxl"},
        {"--model gpt2 --gpu t4 --with sdpa", "sdxl"},
        {"--model gpt2 --gpu t4 --largest size", "sdxl"},
        {"--model sdxl --gpu t4 --size 1000", "1024"},
        {"--model sdxl --gpu t4 --size 65536", "16384"},
        {"--model sdxl --gpu t4 --largest seq", "size"},
        {"--model sdxl --gpu t4 --precision bf16", "BF16"},
        {"--model sdxl --gpu t4 --method lora", "--method"},
        {"--model sdxl --gpus 2xt4", "one card"},
        {"--model flux --gpu t4 --attn-implementation eager", "scaled_dot_product_attention"},
        {"--model sdxl --gpu t4 --with tiles", "enable_vae_tiling"},
        {"--model sdxl --gpu t4 --with enable_vae_tiling", "trained"},
        {"--model sdxl --gpu t4 --with enable_vae_slicing", "one image"},
        {"--model sdxl --gpu t4 --with enable_attention_slicing", "scaled_dot_product_attention"},
        {"--model flux --gpu t4 --with two-passes", "one prediction"},
        {"--model flux --gpu t4 --with 4-bits,8-bits", "one of the two"},
        {"--model flux --gpu t4 --with t5-4-bits,t5-8-bits", "one of the two"},
        {"--model flux --gpu t4 --with t5-4-bits,8-bits", "as many bits"},
        {"--model flux --gpu t4 --with t5-4-bits,enable_sequential_cpu_offload", "block by block"},
        {"--model sdxl --gpu t4 --with t5-4-bits", "only Flux"},
        {"--model flux --gpu t4 --with 4-bits,enable_sequential_cpu_offload", "block by block"}}) {
    try {
      const Question question = asked(words);
      ASSERT_TRUE(question.pipeline) << words;
      (void)answer_pipeline(question);
      ADD_FAILURE() << words;
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

TEST(FitPipelines, JsonSaysWhatWordsSay) {
  const Question question = asked("--model sdxl --gpu rtx3070 --size 2048 --json");
  Answer all;
  all.pipeline = answer_pipeline(question);
  const std::string json = json_of(question, all);
  const PipelineWay& changed = *all.pipeline->changed;
  for (const std::string& part :
       {std::string("\"task\": \"image\""), "\"line\": \"" + first_line(question, *all.pipeline) + "\"",
        "\"live_bytes\": " + std::to_string(changed.live()), "\"device_bytes\": " + std::to_string(changed.needed()),
        "\"decoder_bytes\": " + std::to_string(changed.peaks.decoder.total()),
        std::string("\"what\": \"enable_vae_tiling\""), std::string("\"a1111\": \"--medvram\"")})
    EXPECT_NE(json.find(part), std::string::npos) << part << "\n" << json;
  EXPECT_TRUE(fits(all));
  EXPECT_FALSE(fits_as_it_is(all));
}

TEST(FitPipelines, AVisionTransformerHasTorchvisionsParameters) {
  EXPECT_EQ(nn::parameter_count(*asked("--model vit-b-16 --gpu t4").shape), 86567656u);
}

}  // namespace
