// What fit says of networks of images.

#include <gtest/gtest.h>

#include <sstream>

#include "../../bench/fitting/answer.h"
#include "../../bench/fitting/words.h"
#include "asked.h"
#include "plan/network_step.h"
#include "plan/pytorch/detection.h"
#include "plan/pytorch/reserved.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;

TEST(FitImages, BytesAreThoseOfTheNetwork) {
  const Question question = asked("--model resnet50 --batch 32 --input 160 --gpu l4");
  const ImagesAnswer found = answer_images(question);
  const PeakBytes peak = nn::predict_training(nn::parse_network("resnet50"), 32, {160, 160}, nn::UpdateRule::adamw,
                                              {.activation_in_place = false});
  EXPECT_EQ(found.as_is.bytes, peak.at_peak);
  EXPECT_TRUE(first_line(question, found).starts_with("fits: ")) << first_line(question, found);
  const Question infer = asked("--model mobilenet-v3-large --task infer --batch 8 --gpu l4");
  EXPECT_EQ(answer_images(infer).as_is.bytes[Category::gradients], 0u);
}

// Height first, both in the network's step and in what is said.
TEST(FitImages, ImagesNeedNotBeSquare) {
  const Question question = asked("--model unet:4-64 --batch 2 --input 96x640 --gpu l4");
  const PeakBytes peak = nn::predict_training(nn::parse_network("unet:4-64"), 2, {96, 640}, nn::UpdateRule::adamw,
                                              {.activation_in_place = false});
  const ImagesAnswer found = answer_images(question);
  EXPECT_EQ(found.as_is.bytes, peak.at_peak);
  EXPECT_NE(first_words(question, found).find("2 x 3 x 96 x 640"), std::string::npos) << first_words(question, found);
  EXPECT_EQ(answer_images(asked("--model resnet50 --input 160X160 --gpu l4")).as_is.bytes,
            answer_images(asked("--model resnet50 --input 160 --gpu l4")).as_is.bytes);
  EXPECT_NO_THROW((void)asked("--model vit-b-16 --input 224 --gpu l4"));
  EXPECT_NO_THROW((void)asked("--model google/vit-base-patch16-384 --input 384x384 --gpu l4"));
}

TEST(FitImages, ADetectorsBackboneIsPyTorchs) {
  const Question question = asked("--model fasterrcnn_resnet50_fpn --batch 2 --optim sgd --gpu rtx3060");
  const ImagesAnswer found = answer_images(question);
  const FpnPeak peak =
      fpn_peak(*nn::fpn_backbone_named("resnet50-fpn"),
               {.batch = 2, .size = {800, 1333}, .training = true, .optimizer = HfOptimizer::sgd}, true);
  EXPECT_EQ(found.as_is.bytes, peak.bytes);
  const Reserved reserved = reserved_by_replay(peak.events, TorchSegments::native);
  EXPECT_EQ(found.as_is.allocator, reserved.peak - peak.bytes.total());
  EXPECT_EQ(found.as_is.needed(), reserved.peak + found.as_is.outside);
  Question chinese = question;
  chinese.chinese = true;
  for (const auto& [words, part] : {std::pair(first_words(question, found), "2 x 3 x 800 x 1344"),
                                    {first_words(question, found), "RPN"},
                                    {first_words(question, found), "3 of 4 stages are trained"},
                                    {first_words(chinese, found), "4 个阶段中训练 3 个"}})
    EXPECT_NE(words.find(part), std::string::npos) << words;
  const ImagesAnswer percent =
      answer_images(asked("--model fasterrcnn_resnet50_fpn --batch 2 --optim sgd --gpu rtx3060 --fragmentation 10"));
  EXPECT_EQ(percent.as_is.allocator, peak.bytes.total() / 10);
  const ImagesAnswer infer = answer_images(asked("--model maskrcnn_resnet50_fpn --task infer --batch 2 --gpu rtx3060"));
  EXPECT_EQ(infer.as_is.bytes[Category::gradients], 0u);
  EXPECT_LT(infer.as_is.needed(), found.as_is.needed());
  Answer all;
  all.images = found;
  const std::string json = json_of(question, all);
  for (const std::string& part :
       {std::string("\"parameters\": 26799296"), "\"allocator_bytes\": " + std::to_string(found.as_is.allocator)})
    EXPECT_NE(json.find(part), std::string::npos) << json;
}

TEST(FitImages, WhatLeavesNothingForTheContextDoesNotFit) {
  Question question = asked("--model resnet18 --batch 8 --gpu l4");
  question.room.memory = answer_images(question).as_is.needed() + question.room.reserve;
  EXPECT_TRUE(answer_images(question).as_is.fits());
  --question.room.memory;
  EXPECT_FALSE(answer_images(question).as_is.fits());
  EXPECT_TRUE(first_line(question, answer_images(question)).starts_with("too close: "));
}

TEST(FitImages, ChangesAndTheLargestFit) {
  const Question question = asked("--model resnet50 --batch 512 --gpu rtx3060");
  const ImagesAnswer found = answer_images(question);
  ASSERT_TRUE(!found.as_is.fits() && found.changed);
  EXPECT_TRUE(found.changed->fits());
  const Question most = asked("--model resnet50 --gpu rtx3060 --largest batch");
  const ImagesAnswer largest = answer_images(most);
  ASSERT_TRUE(largest.largest && largest.largest->fits());
  const std::string next = std::to_string(largest.largest->batch + 1);
  EXPECT_FALSE(answer_images(asked("--model resnet50 --gpu rtx3060 --batch " + next)).as_is.fits());
  const Question backbone = asked("--model resnet50-fpn --batch 64 --gpu rtx3060");
  const ImagesAnswer fewer = answer_images(backbone);
  ASSERT_TRUE(!fewer.as_is.fits() && fewer.changed);
  EXPECT_TRUE(fewer.changed->fits());
  EXPECT_FALSE(
      answer_images(asked("--model resnet50-fpn --gpu rtx3060 --batch " + std::to_string(fewer.changed->batch + 1)))
          .as_is.fits());
  for (const Question* asked : {&question, &most, &backbone}) {
    Question q = *asked;
    for (const bool chinese : {false, true}) {
      q.chinese = chinese;
      std::istringstream in(first_words(q, answer_images(q)));
      std::size_t lines = 0;
      for (std::string line; std::getline(in, line); ++lines) EXPECT_LE(columns_of(line), kMostColumns) << line;
      EXPECT_LE(lines, kMostLines);
    }
  }
}

TEST(FitImages, WhatIsRefusedIsRefusedInOneLine) {
  for (const auto& [words, part] : {std::pair("--model resnet51 --gpu t4", "resnet50"),
                                    {"--model resnet50 --gpus 2xt4", "one card"},
                                    {"--model resnet50 --gpu t4 --precision bf16", "FP32"},
                                    {"--model resnet50 --gpu t4 --method lora", "--method"},
                                    {"--model resnet50 --gpu t4 --input 0", "1 to"},
                                    {"--model resnet50 --gpu t4 --input 800x", "HEIGHTxWIDTH"},
                                    {"--model resnet50 --gpu t4 --input x1333", "HEIGHTxWIDTH"},
                                    {"--model resnet50 --gpu t4 --input 0x1333", "HEIGHTxWIDTH"},
                                    {"--model resnet50 --gpu t4 --input 8x8x8", "HEIGHTxWIDTH"},
                                    {"--model resnet50 --gpu t4 --input 800*1333", "HEIGHTxWIDTH"},
                                    {"--model resnet50 --gpu t4 --input 70000x1", "65536"},
                                    {"--model resnet50 --gpu t4 --optim adamw_bnb_8bit", "AdamW, Adafactor"},
                                    {"--model resnet50-fpn --gpu t4 --optim adafactor", "AdamW"},
                                    {"--model resnet50-fpn --gpu t4 --method lora", "--method"},
                                    {"--model resnet50-fpn --gpus 2xt4", "one card"},
                                    {"--model resnet50-fpn", "--gpu"},
                                    {"--model retinanet_resnet50_fpn --gpu t4", "fasterrcnn_resnet50_fpn"},
                                    {"--model vit-b-16 --gpu t4 --input 384", "224 x 224"},
                                    {"--model vit-b-16 --gpu t4 --input 224x225", "224 x 224"},
                                    {"--model gpt2 --gpu t4 --input 224", "no images"},
                                    {"--model sdxl --gpu t4 --input 224", "--size"},
                                    {"--model resnet50", "--gpu"}}) {
    try {
      (void)asked(words);
      ADD_FAILURE() << words;
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  for (const char* const input : {"100", "64x100", "100x64"})
    EXPECT_THROW((void)answer_images(asked(std::string("--model unet:4-64 --gpu t4 --input ") + input)),
                 std::invalid_argument)
        << input;
}

}  // namespace
