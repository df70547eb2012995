// Adapters on published denoisers, against what peft makes of diffusers' (lora.py).

#include <gtest/gtest.h>

#include <fstream>

#include "plan/image/lora.h"
#include "read_json.h"
#include "stored.h"

namespace {

using namespace oomlab;
using namespace oomlab::image;

TEST(Lora, HasAsManyParametersAsPeft) {
  std::ifstream file(std::string(OOMLAB_SHAPES) + "/lora.json");
  const nlohmann::json stored = oomlab::test::read_json(file).at("pipelines");
  EXPECT_EQ(stored.size(), 4u);
  for (const auto& [name, of_ranks] : stored.items())
    for (const auto& [rank, expected] : of_ranks.items()) {
      const UNetSpec& unet = *pipeline_named(name).unet();
      const std::vector<TensorOf> tensors = lora_tensors(unet, std::stoull(rank));
      EXPECT_EQ(parameters(tensors), expected.at("parameters").get<std::uint64_t>()) << name << ", rank " << rank;
      EXPECT_EQ(tensors.size(), expected.at("tensors").get<std::size_t>()) << name;
    }
}

// Of a known model, by hand: everything but activations.
TEST(Lora, KeepsWeightsAdaptersAndTheirMoments) {
  const PipelineSpec& spec = pipeline_named("sd-1.5");
  for (const DType type : kModelDTypes) {
    const ImageRun run{.dtype = type};
    const std::uint64_t element = element_bytes(type), copies = element == sizeof(float) ? 2 : 3;
    const std::vector<TensorOf> adapters = lora_tensors(*spec.unet(), 4);
    const ByCategory found = cost_of_training(spec, run, {}, {64, 64}).peak.at_peak;
    EXPECT_EQ(found[Category::parameters], stored(tensors_of(spec.denoiser), element) + stored(adapters, element));
    EXPECT_EQ(found[Category::gradients], stored(adapters, element));
    EXPECT_EQ(found[Category::optimizer], copies * stored(adapters, sizeof(float)) + kGranule);
    EXPECT_EQ(found[Category::data], 2 * up(4 * 64 * 64 * element) + up(sizeof(float)) + up(77 * 768 * element));
  }
}

// Two images need twice the activations, and not more than that.
TEST(Lora, ActivationsGrowWithTheBatch) {
  const PipelineSpec& spec = pipeline_named("sdxl");
  const auto peak = [&](std::uint64_t images) {
    return cost_of_training(spec, {.batch = images, .dtype = DType::bf16, .attention = PixelAttention::fused}, {},
                            {128, 128})
        .peak.at_peak;
  };
  const ByCategory one = peak(1), two = peak(2);
  EXPECT_NEAR(double(two[Category::activations]) / double(one[Category::activations]), 2, 0.01);
  EXPECT_EQ(one[Category::parameters], two[Category::parameters]);
}

}  // namespace
