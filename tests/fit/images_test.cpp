// What fit says of networks of images.

#include <gtest/gtest.h>

#include <sstream>

#include "../../bench/fitting/answer.h"
#include "../../bench/fitting/words.h"
#include "asked.h"
#include "plan/network_step.h"

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
  for (const Question* asked : {&question, &most}) {
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
                                    {"--model resnet50", "--gpu"}}) {
    try {
      (void)asked(words);
      ADD_FAILURE() << words;
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW((void)answer_images(asked("--model unet:4-64 --input 100 --gpu t4")), std::invalid_argument);
}

}  // namespace
