// Sizes of pipelines: parameters as the published files have them.

#include "plan/image/spec.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

namespace {

using namespace oomlab::image;

// Figures: sums over the tensors of the published safetensors files, which diffusers 0.42 and transformers 5.24 print for
// models made from the same config.json (published_shapes.py makes them). Of the U-Nets also Podell et al., "SDXL",
// 2023, table 1: 860M, 865M, 2.6B; of text encoders 123.06M, 354.03M (with the layer and the projection that diffusers
// leaves out), 817M (both).
TEST(Pipelines, HaveTheParametersOfThePublishedFiles) {
  struct Published {
    const char* name;
    std::vector<std::uint64_t> text;
    std::uint64_t denoiser, autoencoder;
  };
  const Published all[] = {{"sd-1.5", {123060480}, 859520964, 83653863},
                           {"sd-2.1", {340387840}, 865910724, 83653863},
                           {"sdxl", {123060480, 694659840}, 2567463684, 83653863},
                           {"flux.1-dev", {123060480, 4762310656}, 11901408320, 83819683},
                           {"flux.1-schnell", {123060480, 4762310656}, 11891178560, 83819683}};
  for (const Published& published : all) {
    SCOPED_TRACE(published.name);
    const PipelineSpec& spec = pipeline_named(published.name);
    ASSERT_EQ(spec.text.size(), published.text.size());
    for (std::size_t i = 0; i < spec.text.size(); ++i)
      EXPECT_EQ(parameters(tensors_of(spec.text[i])), published.text[i]) << i;
    EXPECT_EQ(parameters(tensors_of(spec.denoiser)), published.denoiser);
    EXPECT_EQ(parameters(tensors_of(spec.autoencoder, AutoencoderPart::both)), published.autoencoder);
  }
}

TEST(Pipelines, HaveTheirEncoderAndDecoderApart) {
  for (const char* name : kPipelines) {
    const AutoencoderSpec& spec = pipeline_named(name).autoencoder;
    const auto encoder = tensors_of(spec, AutoencoderPart::encoder),
               decoder = tensors_of(spec, AutoencoderPart::decoder);
    const auto both = tensors_of(spec, AutoencoderPart::both);
    EXPECT_EQ(encoder.size() + decoder.size(), both.size()) << name;
    EXPECT_EQ(parameters(encoder) + parameters(decoder), parameters(both)) << name;
    for (const TensorOf& tensor : decoder)
      EXPECT_TRUE(tensor.name.starts_with("decoder.") || tensor.name.starts_with("post_quant_conv.")) << tensor.name;
  }
}

TEST(Pipelines, HaveEachTensorOnce) {
  for (const char* name : kPipelines) {
    const PipelineSpec& spec = pipeline_named(name);
    std::vector<std::vector<TensorOf>> models{tensors_of(spec.denoiser),
                                              tensors_of(spec.autoencoder, AutoencoderPart::both)};
    for (const TextEncoderSpec& text : spec.text) models.push_back(tensors_of(text));
    for (const auto& tensors : models) {
      std::set<std::string> names;
      for (const TensorOf& tensor : tensors) {
        EXPECT_TRUE(names.insert(tensor.name).second) << name << ": " << tensor.name;
        EXPECT_GT(tensor.elements(), 0u) << name << ": " << tensor.name;
      }
    }
  }
}

// What has fewer bits where linear layers have: nearly all of a transformer, the smaller part of a U-Net's convolutions
// left out.
TEST(Pipelines, SayWhichTensorsAreMatricesOfLinearLayers) {
  const auto share = [](const std::vector<TensorOf>& tensors) {
    std::vector<TensorOf> linear;
    for (const TensorOf& tensor : tensors)
      if (is_linear(tensor)) linear.push_back(tensor);
    return static_cast<double>(parameters(linear)) / static_cast<double>(parameters(tensors));
  };
  EXPECT_GT(share(tensors_of(pipeline_named("flux.1-dev").denoiser)), 0.999);
  EXPECT_NEAR(share(tensors_of(pipeline_named("sdxl").denoiser)), 0.86, 0.02);
  EXPECT_NEAR(share(tensors_of(pipeline_named("sd-1.5").denoiser)), 0.31, 0.02);
  for (const TensorOf& tensor : tensors_of(pipeline_named("flux.1-dev").text[1])) {
    const bool is_table =
        tensor.name == "shared.weight" || tensor.name.find("relative_attention_bias") != std::string::npos;
    EXPECT_FALSE(is_table && is_linear(tensor)) << tensor.name;
  }
}

TEST(Pipelines, AreKnownByName) {
  for (const char* name : kPipelines) EXPECT_EQ(pipeline_named(name).name, name);
  EXPECT_EQ(pipeline_named("flux.1").name, "flux.1-dev");
  EXPECT_TRUE(pipeline_named("sdxl").is_guided());
  EXPECT_FALSE(pipeline_named("flux.1-dev").is_guided()) << "its guidance is an input";
  try {
    (void)pipeline_named("sd-3");
    ADD_FAILURE();
  } catch (const std::invalid_argument& error) {
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), std::string::npos);
    for (const char* name : kPipelines) EXPECT_NE(what.find(name), std::string::npos) << what;
  }
}

}  // namespace
