// What the command line may ask for: one line where it cannot be.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../../../tests/device.h"
#include "variants.h"

namespace {

using namespace oomlab;
using namespace oomlab::inference;

Config asks(const std::string& model) {
  Config config;
  config.model = model;
  config.batch = 1;
  config.budget = kUnlimited;
  config.options.set(kSeq, std::size_t(16));
  config.options.set(kPrecision, std::string("fp32"));
  config.options.set(kBatches, std::size_t(1));
  config.options.set(kRequests, std::size_t(3));
  config.options.set(kLongestRequest, std::size_t(40));
  config.options.set(kProcessorLayers, std::size_t(1));
  return config;
}
std::string refusal(const Config& config) {
  try {
    (void)decoder_of(config);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Options, ADecoderThatCannotBeIsRefused) {
  EXPECT_EQ(refusal(asks("llama:2-4-2-16-24")), "");
  EXPECT_NE(refusal(asks("gpt2")).find("'gpt2' is not a decoder of this chapter"), std::string::npos);
  Config config = asks("llama:2-4-2-16-24");
  config.options.set(kLongestRequest, std::size_t(1) << 20);
  EXPECT_NE(refusal(config).find("--longest 1048576 is longer than the"), std::string::npos) << refusal(config);
  config = asks("llama:2-4-2-16-24");
  config.options.set(kSeq, std::size_t(1) << 20);
  EXPECT_NE(refusal(config).find("--seq 1048576 is longer than the"), std::string::npos) << refusal(config);
  config = asks("llama:2-4-2-16-24");
  config.options.set(kProcessorLayers, std::size_t(3));
  EXPECT_EQ(refusal(config), "--processor-layers 3: model 'llama:2-4-2-16-24' has 2 layers");
}

// Whoever looks for memory that grows is told of each batch: predictions that pile up are named, and nothing else.
TEST(Options, PredictionsThatPileUpAreNamedInTheTenthBatch) {
  SKIP_WITHOUT_DEVICE();
  const Config config = asks("llama:2-4-2-16-24");
  const Weights weights(decoder_of(config), std::nullopt);
  const data::TextSampler text(text_for(config, weights.spec(), false));
  const Evaluated of{2, 16, 10};
  for (const auto& [name, keeping] : keepings()) {
    GrowthDetector detector;
    Ledger ledger;
    ledger.set_observer(&detector);
    with_context(config, kUnlimited, ledger,
                 [&, kept = keeping](Context& context) { Evaluation<float>(context, weights, text, of, kept).step(); });
    const std::vector<Growth> growths = detector.growths();
    ASSERT_EQ(growths.size(), name == kOnDevice ? 1u : 0u) << name;
    if (growths.empty()) continue;
    EXPECT_EQ(growths[0].loop, "batch");
    EXPECT_EQ(growths[0].found_in, 10u);
    EXPECT_EQ(growths[0].bytes_a_round, double(Evaluation<float>::prediction_bytes(weights.spec(), of)));
    ASSERT_EQ(growths[0].tags.size(), 1u);
    EXPECT_EQ(growths[0].tags[0].tag, "logits");
  }
}

// A config.json instead of a name: the same shape, the same bytes.
TEST(Options, AConfigFileIsAModel) {
  const nn::TransformerSpec spec = nn::parse_transformer("llama:3-6-2-24-40");
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("oomlab_config_" + std::to_string(::getpid()) + ".json");
  std::ofstream(file) << nn::model_config_of(spec);
  Config config = asks(file.string());
  config.options.set(kModelConfig, file.string());
  const nn::TransformerSpec read = decoder_of(config);
  EXPECT_EQ(read.parameters(), spec.parameters());
  EXPECT_EQ(read.keys(), 2u);
  const auto peak = [](const nn::TransformerSpec& of) {
    return Evaluation<float>::predicted(of, {2, 16, 2}, {}).total();
  };
  EXPECT_EQ(peak(read), peak(spec));
  std::filesystem::remove(file);
  EXPECT_NE(refusal(config), "") << "the file is gone";
}

TEST(Options, ServersAreThoseOfTheModel) {
  const Config config = asks("llama:4-8-2-32-24");
  const std::vector<PlannedServer> servers = planned_servers(config, decoder_of(config));
  ASSERT_EQ(servers.size(), 6u);
  EXPECT_EQ(servers[0].config.block_tokens, 40u);
  EXPECT_EQ(servers[1].config.block_tokens, kPageTokens);
  EXPECT_EQ(servers[5].config.cpu_layers, 1u);
  EXPECT_EQ(&servers[1].schedule(), &servers[1].schedule()) << "planned once";
  EXPECT_GT(servers[0].predicted().total(), servers[1].predicted().total());
}

}  // namespace
