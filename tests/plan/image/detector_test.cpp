// The backbone of torchvision's detectors: against its own parameters, and PyTorch's record of a step.

#include "plan/pytorch/detection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>

#include "read_json.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;

const nn::FpnBackbone kBackbone = *nn::fpn_backbone_named("resnet50-fpn");

nlohmann::json measured() {
  std::ifstream stored(std::string(OOMLAB_SHAPES) + "/detector_peaks.json");
  return oomlab::test::read_json(stored).at("rows");
}

nn::FpnBackbone backbone_of(const nlohmann::json& row) {
  nn::FpnBackbone backbone = kBackbone;
  backbone.width = row.at("channels").get<std::uint64_t>();
  return backbone;
}

FpnStep step_of(const nlohmann::json& row) {
  const nlohmann::json& name = row.at("optimizer");
  return {.batch = row.at("batch").get<std::uint64_t>(),
          .size = {row.at("height").get<std::uint64_t>(), row.at("width").get<std::uint64_t>()},
          .training = !name.is_null(),
          .optimizer = name == "sgd"             ? HfOptimizer::sgd
                       : name == "adamw_foreach" ? HfOptimizer::adamw_foreach
                                                 : HfOptimizer::adamw_fused,
          .device = TorchDevice::cpu};
}

TEST(Detector, ParametersAreTorchvisions) {
  EXPECT_EQ(kBackbone.parameters(), 26'799'296u);
  for (const nlohmann::json& row : measured()) {
    const nn::FpnBackbone backbone = backbone_of(row);
    EXPECT_EQ(backbone.parameters(), row.at("parameters").get<std::uint64_t>());
    EXPECT_EQ(backbone.trained_parameters(), row.at("trained").get<std::uint64_t>());
    EXPECT_EQ(backbone.frozen_values(), row.at("frozen_values").get<std::uint64_t>());
  }
}

// But for the loss's few numbers.
TEST(Detector, PeaksAreThoseThatPyTorchRecords) {
  const nlohmann::json rows = measured();
  EXPECT_EQ(rows.size(), 9u);
  for (const nlohmann::json& row : rows) {
    const double said = double(fpn_peak(backbone_of(row), step_of(row)).bytes.total());
    EXPECT_NEAR(said, row.at("bytes").get<double>(), 1024) << row.dump();
  }
}

// Images are padded to multiples of 32, as torchvision's transform does.
TEST(Detector, ImagesArePadded) {
  const auto bytes = [](std::uint64_t height, std::uint64_t width) {
    return fpn_peak(kBackbone, {.batch = 2, .size = {height, width}}).bytes;
  };
  EXPECT_EQ(bytes(800, 1333), bytes(800, 1344));
  EXPECT_EQ(bytes(1, 1), bytes(32, 32));
  EXPECT_LT(bytes(800, 1344).total(), bytes(801, 1344).total());
  EXPECT_EQ(bytes(800, 1333)[Category::data], 2u * 3 * 800 * 1344 * 4);
}

// Stages that are not trained keep nothing for the backward pass, and have no gradient.
TEST(Detector, FrozenStagesKeepNothing) {
  const auto live = [](std::uint64_t stages) {
    nn::FpnBackbone backbone = kBackbone;
    backbone.trained_stages = stages;
    return fpn_peak(backbone, {.batch = 2}).bytes;
  };
  for (std::uint64_t stages = 1; stages < 4; ++stages) {
    EXPECT_LT(live(stages).total(), live(stages + 1).total()) << stages;
    EXPECT_LT(live(stages)[Category::optimizer], live(stages + 1)[Category::optimizer]) << stages;
  }
  EXPECT_EQ(live(3)[Category::optimizer], 8 * kBackbone.trained_parameters());
}

// What is recorded is the same step, behind a first one, and all of it is released in the end.
TEST(Detector, RecordedStepsAreTheSameAndLeakNothing) {
  const FpnStep step{.batch = 1, .size = {96, 128}};
  const FpnPeak recorded = fpn_peak(kBackbone, step, true);
  EXPECT_EQ(recorded.bytes, fpn_peak(kBackbone, step).bytes);
  std::uint64_t live = 0, most = 0;
  for (const MemoryEvent& event : recorded.events) {
    live = event.release ? live - event.bytes : live + event.bytes;
    most = std::max(most, live);
  }
  EXPECT_EQ(live, 0u);
  EXPECT_GE(most, recorded.bytes.total());
}

TEST(Detector, NamesAreTorchvisions) {
  for (const char* const name : {"fasterrcnn_resnet50_fpn", "MaskRCNN_ResNet50_FPN", "keypointrcnn-resnet50-fpn"})
    EXPECT_EQ(nn::fpn_backbone_named(name)->name, "resnet50-fpn") << name;
  for (const char* const name : {"resnet50", "resnet50-fpn-", "bert-base", ""})
    EXPECT_FALSE(nn::fpn_backbone_named(name)) << name;
  for (const char* const name : {"fasterrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn", "yolov8n", "maskrcnn"})
    EXPECT_THROW((void)nn::fpn_backbone_named(name), std::invalid_argument) << name;
}

TEST(Detector, RefusesWhatCannotBe) {
  EXPECT_THROW(fpn_peak(kBackbone, {.batch = 0}), std::invalid_argument);
  EXPECT_THROW(fpn_peak(kBackbone, {.size = {0, 32}}), std::invalid_argument);
  EXPECT_THROW(fpn_peak(kBackbone, {.optimizer = HfOptimizer::adafactor}), std::invalid_argument);
  EXPECT_THROW(fpn_peak(kBackbone, {.batch = std::uint64_t(1) << 60}), std::length_error);
}

}  // namespace
