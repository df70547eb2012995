// What fit reads, and what it refuses: in one line that says what is known.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../../bench/fitting/answer.h"
#include "../nn/model_configs.h"
#include "harness/chapter.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;

using Words = std::vector<std::string>;

TEST(FitQuestion, CardsByTheNamesThatPeopleUse) {
  for (const auto& [text, name] : {std::pair("rtx3060", "rtx-3060"),
                                   {"4090", "rtx-4090"},
                                   {"rtx4060", "rtx-4060"},  // each of these three was another card once
                                   {"h20", "h20"},
                                   {"l40", "l40"},
                                   {"a100-40", "a100-40gb"},
                                   {"H100 SXM", "h100-sxm"}})
    EXPECT_EQ(card_named("--gpu", text).name, std::string(name)) << text;
}

// A name that several cards share is the one with the least memory, and the answer says so.
TEST(FitQuestion, ANameOfSeveralCardsIsSaid) {
  for (const auto& [text, said] : {std::pair("a100", "on A100 SXM, 40 GB (others by that name: a100-80gb)"),
                                   {"h100", "on H100 SXM (others by that name: h100-pcie)"},
                                   {"4060 ti", "on RTX 4060 Ti, 8 GB (others by that name: rtx-4060-ti-16gb)"},
                                   {"a100-80", "on A100 SXM, 80 GB\n"}}) {
    const Question q = parse_question({"--model", "gpt:1-1-8", "--gpu", text}).value();
    EXPECT_NE(words_of(q, answer(q)).find(said), std::string::npos) << words_of(q, answer(q)).substr(0, 200);
  }
}

// Not what is printed on the box.
TEST(FitQuestion, TheRoomIsWhatCudaReportsOfTheCard) {
  for (const Card& card : cards()) {
    const Question q = parse_question({"--model", "gpt2", "--gpu", card.name}).value();
    EXPECT_EQ(q.room.memory, card.total_bytes()) << card.name;
    EXPECT_LT(double(q.room.memory), card.memory_gb * double(1 << 30)) << card.name;
    const Question less = parse_question({"--model", "gpt2", "--gpu", card.name, "--memory", "5GB"}).value();
    EXPECT_EQ(less.room.memory, 5'000'000'000u);
  }
}

TEST(FitQuestion, ModelsInCapitals) {
  const Question q = parse_question({"--model", "LLAMA-3.1-8B", "--gpu", "t4"}).value();
  EXPECT_EQ(q.model, "--model llama-3.1-8b");
  EXPECT_EQ(q.spec.name, "llama-3.1-8b");
  EXPECT_EQ(parse_question({"--model", "GPT:2-2-32", "--gpu", "t4"}).value().model, "--model gpt:2-2-32");
}

TEST(FitQuestion, Defaults) {
  const Question q = parse_question({"--model", "bert-large", "--gpu", "rtx3060"}).value();
  EXPECT_EQ(q.batch, 1u);
  EXPECT_EQ(q.seq, 512u);
  EXPECT_TRUE(q.training);
  constexpr std::size_t memory = 12'616'466'432;  // 11.75 GiB
  EXPECT_EQ(q.room.memory, memory);
  EXPECT_EQ(q.room.fragmentation, 252'329'328u);
  EXPECT_EQ(q.room.nccl, 0u);
  EXPECT_EQ(q.room.left(), memory - 252'329'328u - kContext - (8u << 20));
  const Question several = parse_question({"--model=gpt2", "--gpus=4xa100-40", "--memory", "9GB", "--seq=7"}).value();
  EXPECT_EQ(several.gpus, 4u);
  EXPECT_EQ(several.card->name, std::string("a100-40gb"));
  EXPECT_EQ(several.room.memory, 9'000'000'000u);
  EXPECT_EQ(several.room.nccl, kNccl);
  EXPECT_FALSE(parse_question({"--help"}));
  EXPECT_NE(help().find("--without"), std::string::npos);
}

// bench/run reads it in another folder, after a shell.
TEST(FitQuestion, CommandsNameTheWholePathOfAConfig) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "fit's config.json";
  std::ofstream(file) << test::kLlama31_8B;
  const Question q = parse_question({"--config", std::filesystem::relative(file).string(), "--gpu", "t4"}).value();
  ASSERT_TRUE(q.model.starts_with("--config '/")) << q.model;
  EXPECT_TRUE(q.model.ends_with("/fit'\\''s config.json'")) << q.model;
}

TEST(FitQuestion, WhatIsRefusedIsRefusedInOneLine) {
  const std::string config = testing::TempDir() + "fit_config.json";
  std::ofstream(config) << R"({"model_type": "mamba", "hidden_size": 64})";
  const std::pair<Words, const char*> bad[] = {
      {{}, "--model"},
      {{"--model", "bert-large"}, "--gpu"},
      {{"--model", "bertha", "--gpu", "t4"}, "bert"},
      {{"--config", config, "--gpu", "t4"}, "llama"},
      {{"--config", "/nowhere/config.json", "--gpu", "t4"}, "/nowhere"},
      {{"--model", "gpt2", "--config", config, "--gpu", "t4"}, "--model"},
      {{"--model", "gpt2", "--gpu", "rtx-4099"}, "nearest: rtx-4090"},
      {{"--model", "gpt2", "--gpu", "rtx-309"}, "nearest: rtx-3090"},
      {{"--model", "gpt2", "--gpus", "4xa1000"}, "--gpus 'a1000' is unknown; nearest: a100-40gb"},
      {{"--model", "gpt2", "--gpu", "mi300x"}, "AMD's; only cards by NVIDIA are known; or give --memory SIZE"},
      {{"--model", "gpt-2", "--gpu", "t4"}, "nearest: gpt2"},
      {{"--model", "gpt2", "--gpu", ""}, "--gpu needs a value"},
      {{"--model", "gpt2", "--gpu"}, "--gpu needs a value"},
      {{"--model", "gpt2", "--gpus", "0xt4"}, "1 to"},
      {{"--model", "gpt2", "--gpus", "4x"}, "4xa100"},
      {{"--model", "gpt2", "--gpus", "2xt4", "--gpu", "t4"}, "--gpu"},
      {{"--model", "gpt2", "--gpus", "9999999999"}, "1 to"},
      {{"--model", "gpt2", "--memory", "0GB"}, "--memory"},
      {{"--model", "gpt2", "--memory", "-4GB"}, "--memory"},
      {{"--model", "gpt2", "--memory", "much"}, "--memory"},
      {{"--model", "gpt2", "--memory", "100MB"}, "--context"},
      {{"--model", "gpt2", "--memory", "500", "--context", "0"}, "leave nothing"},
      {{"--model", "gpt2", "--gpu", "t4", "--batch", "-3"}, "1 to"},
      {{"--model", "gpt2", "--gpu", "t4", "--batch", "0"}, "1 to"},
      {{"--model", "gpt2", "--gpu", "t4", "--batch", "99999999999999999999"}, "1 to"},
      {{"--model", "gpt2", "--gpu", "t4", "--seq", "1.5"}, "1 to"},
      {{"--model", "gpt2", "--gpu", "t4", "--seq", "5000"}, "1024 positions"},
      {{"--model", "gpt2", "--gpu", "t4", "--task", "dream"}, "train, infer"},
      {{"--model", "gpt2", "--gpu", "t4", "--task", "infer"}, "llama"},
      {{"--model", "llama-3.1-8b", "--gpus", "2xt4", "--task", "infer"}, "one card"},
      {{"--model", "gpt2", "--gpu", "t4", "--numbers", "worse"}, "same, adamw, any"},
      {{"--model", "gpt2", "--gpu", "t4", "--precision", "fp8"}, "bf16"},
      {{"--model", "gpt2", "--gpu", "t4", "--without", "luck"}, "micro-batch"},
      {{"--model", "gpt2", "--gpu", "t4", "--fragmentation", "200"}, "0 to 90"},
      {{"--model", "gpt2", "--gpu", "t4", "--fragmentation", "nan"}, "0 to 90"},
      {{"--model", "gpt2", "--gpu", "t4", "--context", "lots"}, "--context"},
      {{"--model", "gpt2", "--gpu", "t4", "--speed"}, "not an option"},
      {{"gpt2"}, "not an option"},
      {{"--model", "gpt:100000-1-8", "--gpu", "t4"}, "up to 256"},
      {{"--model", "gpt:999999-1-99999999999999", "--gpu", "t4"}, ""},
  };
  for (const auto& [words, known] : bad) {
    std::string all;
    for (const std::string& word : words) all += word + " ";
    try {
      (void)answer(parse_question(words).value());
      ADD_FAILURE() << "accepted: " << all;
    } catch (const std::exception& error) {
      const std::string said = error.what();
      EXPECT_EQ(said.find('\n'), std::string::npos) << all;
      EXPECT_NE(said.find(known), std::string::npos) << all << "said: " << said;
      const bool usage = dynamic_cast<const UsageError*>(&error) ||
                         dynamic_cast<const std::invalid_argument*>(&error) ||
                         dynamic_cast<const std::length_error*>(&error) || dynamic_cast<const BadFile*>(&error);
      EXPECT_TRUE(usage) << all << "said: " << said;
    }
  }
}

TEST(FitQuestion, InferenceIsWhatItsProgramsRead) {
  const Question q =
      parse_question({"--model", "llama-3.1-8b", "--task", "infer", "--seq", "2048", "--gpu", "rtx3060"}).value();
  const Answer found = answer(q);
  EXPECT_FALSE(found.as_is.fits);  // 16 GB of weights
  ASSERT_TRUE(found.cheapest && !found.ladder.empty());
  EXPECT_TRUE(found.cheapest->fits);
  EXPECT_EQ(found.ladder.back().changes, 1u);
  EXPECT_TRUE(found.cheapest->command.starts_with("bench/run 12_quantisation --plan ")) << found.cheapest->command;
  EXPECT_GT(found.most->batch_at_once, 1u);
  const Question same =
      parse_question({"--model", "llama-3.1-8b", "--task", "infer", "--numbers", "same", "--gpu", "rtx3060"}).value();
  EXPECT_NE(answer(same).cheapest->command.find("processor-layers"), std::string::npos);
  const Question none = parse_question({"--model", "llama-3.1-70b", "--task", "infer", "--without", "processor,weights",
                                        "--gpu", "rtx3060"})
                            .value();
  const Answer nothing = answer(none);
  EXPECT_FALSE(nothing.fits());
  EXPECT_TRUE(nothing.closest);
}

TEST(FitQuestion, ServingHasRoomForAllAtFullLength) {
  const auto row = [](const char* batch) {
    const Words words{"--model", "llama-3.2-1b", "--task", "infer", "--precision", "fp16",
                      "--batch", batch,          "--seq",  "512",   "--gpu",       "rtx3060"};
    return answer(parse_question(words).value()).as_is;
  };
  const Row one = row("1"), four = row("4");
  const std::size_t tokens = 2 * 16 * 8 * 64 * 2 * 512;  // K and V, 16 layers, 8 heads of 64 values of 2 bytes
  EXPECT_EQ(four.peak[Category::activations] - one.peak[Category::activations], 3 * tokens);
  EXPECT_EQ(four.peak[Category::parameters], one.peak[Category::parameters]);
  EXPECT_EQ(one.changes, 0u);
}

TEST(FitQuestion, AnswersAreWordsAndJson) {
  const Question q = parse_question({"--model", "bert-large", "--batch", "13", "--memory", "9GB"}).value();
  const Answer found = answer(q);
  const std::string words = words_of(q, found), json = json_of(q, found);
  for (const char* part :
       {"does not fit", "the ladder", "+ --", "by a lower bound", "16_capstone --plan", "sequences of up to"})
    EXPECT_NE(words.find(part), std::string::npos) << part << "\n" << words;
  for (const char* part : {"\"ladder\"", "\"cheapest\"", "\"left_bytes\"", "\"combinations\"", "\"most\""})
    EXPECT_NE(json.find(part), std::string::npos) << part;
}

}  // namespace
