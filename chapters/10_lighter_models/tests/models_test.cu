// The models of a run, the labels that segmenters learn, packed layers made piece by piece, and what the chapter
// refuses.

#include <gtest/gtest.h>

#include "../../../tests/nn/device.h"
#include "claims.h"
#include "nn/ops/values.h"

namespace {

using namespace oomlab;
using namespace oomlab::lighter_models;

Config usual_config() {
  Config config;
  config.model = "resnet:2-4";
  config.batch = 2;
  for (const auto& [option, value] :
       {std::pair(kInput, 16), {kWidth, 50}, {kChannels, 50}, {kWeights, 90}, {kLinear, 32}})
    config.options.set(option, std::size_t(value));
  return config;
}

void expect_refused(const Config& config, const std::string& part) {
  try {
    require_possible(models_of(config), config);
    ADD_FAILURE() << "accepted: " << part;
  } catch (const std::exception& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(LighterModels, EachIsLighterInItsWay) {
  const std::vector<Model> models = models_of(usual_config());
  ASSERT_EQ(models.size(), 11u);
  const std::size_t parameters = models[0].trained().parameters();
  for (const std::size_t same : {1, 2, 6}) EXPECT_EQ(models[same].trained().parameters(), parameters) << same;
  for (const std::size_t fewer : {3, 4, 5, 7, 8}) EXPECT_LT(models[fewer].trained().parameters(), parameters) << fewer;
  EXPECT_FALSE(models[1].form.activation_in_place);
  EXPECT_TRUE(models[2].form.recompute_norms);
  EXPECT_EQ(models[6].weights_pruned, 90u);
  EXPECT_TRUE(models[9].spec.per_pixel && models[10].spec.per_pixel);
  EXPECT_EQ(name_of(models, Model::Kind::narrow), "50 % as wide");
}

TEST(LighterModels, OtherNetworksHaveTheFormsThatTheyCanHave) {
  Config config = usual_config();
  for (const auto& [model, count] : {std::pair("mobilenet:4", 6), {"unet:2-4", 8}, {"mobilenet-v3-large", 6}}) {
    config.model = model;
    const std::vector<Model> models = models_of(config);
    EXPECT_EQ(models.size(), std::size_t(count)) << model;
    EXPECT_EQ(models.front().name, model);
    EXPECT_EQ(name_of(models, Model::Kind::separable), "");
    EXPECT_NO_THROW(require_possible(models, config)) << model;
    EXPECT_EQ(claims_of(config, models).size(), 12u);
  }
}

TEST(LighterModels, SegmentersNeedAMultipleOfSixteen) {
  Config config = usual_config();
  config.options.set(kInput, std::size_t(20));
  EXPECT_EQ(models_of(config).size(), 9u);
  EXPECT_NO_THROW(require_possible(models_of(config), config));
}

TEST(LighterModels, WhatCannotBeIsRefusedInOneLine) {
  Config config = usual_config();
  config.options.set(kLinear, std::size_t(510));
  expect_refused(config, "510 inputs are not divisible by 4");
  config.filter = "^resnet";  // then nobody asks for the linear layers
  EXPECT_NO_THROW(require_possible(models_of(config), config));

  config = usual_config();
  config.batch = 1;
  config.options.set(kInput, std::size_t(4));
  config.model = "resnet:3-4";
  expect_refused(config, "one value per channel");
  config.model = "resnet:0-4";
  expect_refused(config, "out of range");

  config = usual_config();
  config.batch = std::size_t(1) << 50;
  expect_refused(config, "64 bits");
}

TEST(LighterModels, SkipsImagesWithMoreClassesThanLabels) {
  data::Dataset dataset = data::digits();
  const nn::NetworkSpec unet = nn::parse_network("unet:1-2"), mobilenet = nn::parse_network("mobilenet:2");
  EXPECT_NO_THROW(require_classes(unet, dataset));
  EXPECT_NO_THROW(require_classes(mobilenet, dataset));
  dataset.classes = 11;
  EXPECT_THROW(require_classes(unet, dataset), VariantSkipped);
  EXPECT_THROW(require_classes(mobilenet, dataset), VariantSkipped);
}

TEST(LabelsOfPixels, AreThoseOfTheImageWhereThereIsInk) {
  test::Device device;
  Context& context = device.context;
  const data::Dataset dataset = data::digits();
  const data::DeviceDataset images(context, dataset);
  const nn::NetworkSpec spec = nn::parse_network("unet:1-2");
  constexpr std::size_t kBatch = 5, kSide = 8, kFirst = 7;  // as large as the pictures
  const nn::Batch batch = make_labelled(context, images, kFirst, kBatch, kSide, spec);
  const std::vector<int> labels = device.download(batch.labels);
  ASSERT_EQ(labels.size(), kBatch * kSide * kSide);
  std::size_t ink = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::size_t image = i / (kSide * kSide), at = (kFirst + image) * kSide * kSide + i % (kSide * kSide);
    const bool has_ink = dataset.images[at] > dataset.white / 4;
    ink += has_ink;
    ASSERT_EQ(labels[i], has_ink ? dataset.labels[kFirst + image] : 10) << i;
  }
  EXPECT_GT(ink, 50u);
}

TEST(PackedLayers, PieceByPieceAreTheSame) {
  test::Device device;
  Context& context = device.context;
  constexpr std::size_t kOut = 70, kIn = 36;
  auto dense = context.buffer<__half>(kOut * kIn, Category::data, "dense");
  nn::fill_uniform(context, dense.data(), dense.size(), 1.0f, 3, 0);
  const TwoOfFour whole(context, dense.data(), kOut, kIn, "whole");
  TwoOfFour pieces(context, kOut, kIn, "pieces");
  for (std::size_t first = 0; first < kOut; first += kRowsAtATime)
    pieces.pack_rows(context, dense.data() + first * kIn, first, std::min(kRowsAtATime, kOut - first));
  const auto words = [&](const auto& buffer) { return nn::fingerprint(context, buffer.data(), buffer.bytes()); };
  EXPECT_EQ(words(pieces.values()), words(whole.values()));
  EXPECT_EQ(words(pieces.places()), words(whole.places()));
}

// Where activations are small, the fullest moment is the one in which both the dense and the pruned network exist.
TEST(LighterModels, TrainingTakesThePredictedBytes) {
  const data::Dataset dataset = data::digits();
  Config small = usual_config();
  small.model = "resnet:2-16";
  small.options.set(kInput, std::size_t(4));
  small.options.set(kChannels, std::size_t(80));
  for (const Config& config : {usual_config(), small})
    for (const Model& model : models_of(config)) {
      const std::size_t side = config.options[kInput];
      Ledger ledger;
      {
        CudaResource resource;
        Context context(resource, ledger);
        Training training(context, dataset, model, side, 2);
        training.step();
        EXPECT_GE(training.zeros(), training.masked());
      }
      const ByCategory found = without_workspace(ledger.peak_by_category()),
                       expected = Training::predicted(dataset, model, side, 2);
      for (std::size_t c = 0; c < kCategoryCount; ++c)
        EXPECT_EQ(found.bytes[c], expected.bytes[c]) << model.name << ": " << name_of(static_cast<Category>(c));
      EXPECT_EQ(ledger.live_bytes(), 0u);
    }
  const std::vector<Model> models = models_of(small);
  const Model& cut = *std::ranges::find(models, Model::Kind::channels_pruned, &Model::kind);
  EXPECT_EQ(Training::predicted(dataset, cut, 4, 2)[Category::optimizer], 0u);
}

}  // namespace
