// What fit reads, and what it refuses: in one line that says what is known.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../../bench/fitting/answer.h"
#include "../../bench/fitting/list.h"
#include "../../bench/fitting/options.h"
#include "../nn/model_configs.h"
#include "asked.h"
#include "harness/chapter.h"
#include "memory/files.h"

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
  EXPECT_EQ(q.room.left(), memory - 252'329'328u - kContext.started - kContext.growth - (8u << 20));
  EXPECT_EQ(q.host_gb_per_s, 102.4);
  EXPECT_TRUE(q.notes.empty());
  const Question several = parse_question({"--model=gpt2", "--gpus=4xa100-40", "--memory", "9GB", "--seq=7"}).value();
  EXPECT_EQ(parse_question({"--model", "gpt2", "--memory", "9 GB"}).value().room.memory, several.room.memory);
  EXPECT_EQ(several.gpus, 4u);
  EXPECT_EQ(several.card->name, std::string("a100-40gb"));
  EXPECT_EQ(several.room.memory, 9'000'000'000u);
  EXPECT_EQ(several.room.nccl, kNccl);
  EXPECT_EQ(several.room.left(1) - several.room.left(4), kNccl);  // one card alone sends nothing
  EXPECT_EQ(several.host_gb_per_s, 614.4);
  EXPECT_FALSE(parse_question({"--help"}));
  EXPECT_NE(help().find("--without"), std::string::npos);
}

// What --help names is taken, and none of it is called unknown.
TEST(FitQuestion, TakesEveryOptionOfItsHelp) {
  const std::string text = help();
  std::size_t options = 0;
  for (std::size_t at = text.find("\n  --"); at != text.npos; at = text.find("\n  --", at + 1)) {
    const std::string name = text.substr(at + 3, text.find_first_of(" ,", at + 3) - at - 3);
    if (name == "--list") continue;
    ++options;
    try {
      (void)parse_question({name, ""});
      (void)parse_question({"--model", "gpt2", "--gpu", "t4", name});
    } catch (const UsageError& error) {
      EXPECT_FALSE(std::string(error.what()).starts_with("'" + name)) << error.what();
    }
  }
  EXPECT_GE(options, 30u);
  EXPECT_TRUE(parse_question({"--model", "gpt2", "--gpu", "t4", "--expandable-segments"})->reader.expandable);
}

TEST(FitQuestion, ListsWhatItKnows) {
  EXPECT_FALSE(list_of({"--model", "gpt2"}));
  const std::string text = list_of({"--list"}).value(), json = list_of({"--json", "--list"}).value();
  for (const std::string& part : {std::string("gpt3-175b"), std::string("Llama-3.1-8B"), std::string("resnet50"),
                                  std::string("rtx-4090"), std::string("qlora")}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
    EXPECT_NE(json.find(part), std::string::npos) << part;
  }
  for (const auto& [option, words] : words_of_options())
    for (const std::string& one : words) EXPECT_EQ(words[word(option, one)], one);
  EXPECT_NE(json.find("\"zh\": \"激活\""), std::string::npos);
  EXPECT_THROW((void)list_of({"--list", "--model", "gpt2"}), UsageError);
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
      {{"--model", "bert-large", "--engine", "oomlab"}, "--gpu"},
      {{"--model", "llama-3.1-8b", "--task", "infer"}, "--gpu"},
      {{"--model", "bert-large", "--largest", "batch"}, "--gpu"},
      {{"--model", "bertha", "--gpu", "t4"}, "bert"},
      {{"--model", "llama-4-8b", "--gpu", "t4"}, "nearest: "},
      {{"--model", "qwen3-8b", "--gpu", "t4", "--engine", "oomlab"}, "programs do not know"},
      {{"--model", "gpt2", "--gpu", "t4", "--method", "dora"}, "full, lora, qlora"},
      {{"--model", "gpt2", "--gpu", "t4", "--optim", "adam"}, "adamw_torch_fused"},
      {{"--model", "gpt2", "--gpu", "t4", "--weights", "fp8"}, "fp32"},
      {{"--model", "gpt2", "--gpu", "t4", "--attn-implementation", "flash"}, "sdpa, eager"},
      {{"--model", "gpt2", "--gpu", "t4", "--engine", "tgi"}, "pytorch, oomlab, vllm, llama.cpp"},
      {{"--model", "gpt2", "--gpu", "t4", "--framework", "jax"}, "trl"},
      {{"--model", "gpt2", "--gpu", "t4", "--largest", "model"}, "batch, seq"},
      {{"--model", "gpt2", "--gpu", "t4", "--lang", "fr"}, "en, zh"},
      {{"--model", "gpt2", "--gpu", "t4", "--lora-rank", "0"}, "1 to"},
      {{"--model", "gpt2", "--gpu", "t4", "--gradient-accumulation", "x"}, "1 to"},
      {{"--config", config, "--gpu", "t4"}, "llama"},
      {{"--config", "/nowhere/config.json", "--gpu", "t4"}, "/nowhere"},
      {{"--model", "gpt2", "--config", config, "--gpu", "t4"}, "two models"},
      {{"--model", "gpt2", "--gpu", "rtx-4099"}, "nearest: rtx-4090"},
      {{"--model", "gpt2", "--gpu", "rtx-309"}, "nearest: rtx-3090"},
      {{"--model", "gpt2", "--gpus", "4xa1000"}, "--gpus 'a1000' is unknown; nearest: a100-40gb"},
      {{"--model", "gpt2", "--gpu", "mi300x"}, "AMD's; only cards by NVIDIA are known; or give --memory SIZE"},
      {{"--model", "gpt-4", "--gpu", "t4"}, "nearest: "},
      {{"--model", "gpt2", "--gpu", ""}, "--gpu needs a value"},
      {{"--model", "gpt2", "--gpu"}, "--gpu needs a value"},
      {{"--model", "gpt2", "--gpus", "0xt4"}, "1 to"},
      {{"--model", "gpt2", "--gpus", "4x"}, "4xa100"},
      {{"--model", "gpt2", "--gpus", "2xt4", "--gpu", "t4"}, "--gpu"},
      {{"--model", "gpt2", "--gpus", "9999999999"}, "1 to"},
      {{"--model", "gpt2", "--memory", "0GB"}, "--memory"},
      {{"--model", "gpt2", "--memory", "-4GB"}, "--memory"},
      {{"--model", "gpt2", "--memory", "much"}, "--memory"},
      {{"--model", "gpt2", "--memory", "24"}, "--memory '24' is 24 bytes; gigabytes are written as 24GB"},
      {{"--model", "gpt2", "--memory", "24,5GB"}, "24.5GB"},
      {{"--model", "gpt2", "--memory", "100MB"}, "--context"},
      {{"--model", "gpt2", "--memory", "500", "--context", "0", "--reserve", "0"}, "leave nothing"},
      {{"--model", "gpt2", "--memory", "500MB"}, "--reserve"},
      {{"--model", "gpt2", "--gpu", "t4", "--reserve", "some"}, "--reserve"},
      {{"--model", "gpt2", "--gpu", "t4", "--host-bandwidth", "0"}, "1 to 10000"},
      {{"--model", "gpt2", "--gpu", "t4", "--host-bandwidth", "nan"}, "1 to 10000"},
      {{"--model", "gpt2", "--gpu", "t4", "--host-memory", "x"}, "--host-memory"},
      {{"--model", "llama-3.1-8b", "--gpu", "t4", "--task", "infer", "--precision", "bf16"}, "BF16; take fp16 or fp32"},
      {{"--model", "gpt2", "--gpu", "t4", "--batch", "-3"}, "1 to"},
      {{"--model", "gpt2", "--gpu", "t4", "--batch", "0"}, "1 to"},
      {{"--model", "gpt2", "--gpu", "t4", "--batch", "99999999999999999999"}, "1 to"},
      {{"--model", "gpt2", "--gpu", "t4", "--seq", "1.5"}, "1 to"},
      {{"--model", "gpt2", "--gpu", "t4", "--seq", "5000"}, "1024 positions"},
      {{"--model", "gpt2", "--gpu", "t4", "--task", "dream"}, "train, infer"},
      {{"--model", "gpt2", "--gpu", "t4", "--task", "infer"}, "llama"},
      {{"--model", "llama-3.1-8b", "--gpus", "2xt4", "--task", "infer", "--engine", "oomlab"}, "one card"},
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

std::string notes_of(const Words& words) {
  const Question question = parse_question(words).value();
  std::string all;
  for (const std::string& note : question.notes) all += note + "\n";
  return all;
}

TEST(FitQuestion, SaysWhatIsNotAsSomebodyMayThink) {
  EXPECT_EQ(notes_of({"--model", "gpt2-xl", "--gpu", "t4"}), "");
  const std::string shape = notes_of({"--model", "gpt:48-25-1600", "--gpu", "t4"});
  EXPECT_NE(shape.find("vocabulary of 258"), std::string::npos) << shape;
  EXPECT_NE(shape.find("write --model gpt2-xl for its 50257"), std::string::npos) << shape;
  const std::string other = notes_of({"--model", "gpt:48-25-800", "--gpu", "t4"});
  EXPECT_NE(other.find("vocabulary of 258"), std::string::npos) << other;
  EXPECT_EQ(other.find("write --model"), std::string::npos) << other;
  EXPECT_EQ(notes_of({"--model", "llama-3.2-1b", "--seq", "66161", "--gpu", "t4"}), "");
  EXPECT_NE(notes_of({"--model", "llama-3.2-1b", "--seq", "66162", "--gpu", "t4"}).find("--text FILE"),
            std::string::npos);
  const std::string config = testing::TempDir() + "quantised.json";
  std::string json = test::kLlama31_8B;
  json.insert(json.find('{') + 1, R"("quantization_config": {"quant_method": "awq", "bits": 4},)");
  std::ofstream(config) << json;
  const Words words{"--config", config, "--gpu", "t4"};
  EXPECT_NE(notes_of(words).find("quantization_config ('awq', 4 bits) is left out"), std::string::npos);
  const Question q = parse_question(words).value();
  const Answer found = answer(q);
  EXPECT_NE(words_of(q, found).find("'awq', 4 bits"), std::string::npos);
  EXPECT_NE(json_of(q, found).find("'awq', 4 bits"), std::string::npos);
}

// What was measured on an H100 holds from Hopper on, for a part of a card, too; what was asked for is what counts.
TEST(FitQuestion, TheContextIsThatOfTheCard) {
  for (const Card& card : cards()) {
    const Room whole = parse_question({"--model", "gpt2", "--gpu", card.name}).value().room;
    EXPECT_EQ(whole.context, card.capability >= 9 ? 557'842'432u : 287'000'000u) << card.name;
    EXPECT_EQ(whole.reserve, card.capability >= 9 ? 268'435'456u : 380'000'000u) << card.name;
  }
  const Room part = parse_question({"--model", "gpt2", "--gpu", "h200", "--memory", "9GB"}).value().room;
  EXPECT_EQ(part.context, 557'842'432u);
  const Room asked = parse_question({"--model", "gpt2", "--gpu", "h200", "--context", "1GB", "--reserve", "0"})->room;
  EXPECT_EQ(asked.context, 1'000'000'000u);
  EXPECT_EQ(asked.reserve, 0u);
}

// An answer that leaves next to nothing is none: what it may take ends a reserve before the card does.
TEST(FitQuestion, AnAnswerLeavesTheReserve) {
  for (const char* memory : {"8GB", "10GB", "12GB", "24GB"})
    for (const char* task : {"train", "infer"}) {
      const Words words{"--model", "llama-3.2-1b", "--task", task, "--batch", "2", "--memory", memory};
      const Question q = parse_question(words).value();
      const Answer found = answer(q);
      ASSERT_TRUE(found.fits()) << memory;
      const std::size_t taken = q.room.context + q.room.fragmentation + q.room.workspace;
      EXPECT_GE(q.room.memory - taken - found.cheapest->peak.total(), kContext.growth) << memory;
    }
}

// What does not fit several cards in their buffers' company, or at all, may fit one of them: then the answer says so.
TEST(FitQuestion, OneCardOfSeveralIsSaidAndHasNoBuffersBetweenRanks) {
  for (const char* batch : {"4"}) {  // one layer of one head: two ranks share the samples
    const Words asked{"--model", "gpt:1-1-3072", "--batch",   batch,      "--seq",
                      "512",     "--gpus",       "2xrtx3060", "--memory", "1.2GB"};
    const Question q = parse_question(asked).value();
    const Answer found = answer(q);
    ASSERT_TRUE(found.fits() && !found.ladder.empty());
    const Row& row = found.ladder.back();
    ASSERT_EQ(row.cards, 1u);
    EXPECT_EQ(row.left, q.room.left() + q.room.nccl);
    EXPECT_NE(row.command.find(" --budget " + std::to_string(q.room.budget(1)) + " "), std::string::npos);
    const std::string words = words_of(q, found);
    EXPECT_NE(words.find("(uses 1 of the 2 cards, with no NCCL"), std::string::npos) << words;
    std::size_t before = found.as_is.peak.total();
    for (const Row& step : found.ladder) {  // no rung of a ladder goes up
      EXPECT_LT(step.peak.total(), before) << step.what;
      before = step.peak.total();
    }
    EXPECT_EQ(words.find("  -"), words.find("  --")) << words;  // no "saves -14.641 GB"
  }
}

// Layers on the processor have their weights and their part of the cache in host memory.
TEST(FitQuestion, TheProcessorsLayersHaveTheirCacheInHostMemory) {
  const auto row_of = [](std::size_t batch, std::size_t seq, Words more) {
    Words words{"--model", "llama-3.1-8b",      "--task", "infer",   "--batch",   std::to_string(batch),
                "--seq",   std::to_string(seq), "--gpu",  "rtx3060", "--without", "weights,kv-8-bits"};
    words.insert(words.end(), more.begin(), more.end());
    const Answer found = answer(parse_question(words).value());
    return found.cheapest.value_or(*(found.closest ? &*found.closest : &found.as_is));
  };
  const auto layers_of = [](const Row& row) { return std::stoul(row.options.substr(row.options.rfind(' ') + 1)); };
  const Row row = row_of(32, 8192, {});
  ASSERT_NE(row.options.find("--processor-layers"), std::string::npos) << row.options;
  const std::size_t layers = layers_of(row), tokens = 32 * 8192;
  const std::size_t token = layers * 2 * 8 * 128 * 4;  // K and V, 8 heads of 128 values, FP32
  const std::size_t weights = layers * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096) * 2;
  EXPECT_EQ(row.host_bytes, weights + tokens * token);
  EXPECT_GT(*row.seconds, double(weights + tokens * token) / 102.4e9);
  EXPECT_LT(*row_of(32, 8192, {"--host-bandwidth", "1000"}).seconds, *row.seconds);
  EXPECT_FALSE(row_of(32, 8192, {"--host-memory", "64GB"}).fits);
  EXPECT_TRUE(row_of(32, 8192, {"--host-memory", "80GB"}).fits);
}

// Chapter 11 serves fewer at a time where not all fit: a command that says so would contradict a row that does not fit.
TEST(FitQuestion, ServingThatDoesNotFitHasNoCommand) {
  const Words words{"--model", "llama-3.1-8b", "--task", "infer",   "--batch",   "64",
                    "--seq",   "8192",         "--gpu",  "rtx3060", "--without", "processor,weights"};
  const Question q = parse_question(words).value();
  const Answer found = answer(q);
  ASSERT_TRUE(!found.fits() && found.closest);
  ASSERT_NE(found.closest->options.find("cache"), std::string::npos) << found.closest->options;
  EXPECT_EQ(found.closest->command, "");
  EXPECT_NE(json_of(q, found).find("\"command\": null"), std::string::npos);
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

TEST(FitQuestion, SaysHowMuchHostMemoryIsMissing) {
  const auto beside = [&](std::uint64_t host) {
    return answer(
        asked("--engine oomlab --model gpt2-xl --gpu rtx3060 --batch 16 --seq 1024 --numbers same --host-memory " +
              std::to_string(host)));
  };
  const Answer refused = beside(1'000'000'000);
  EXPECT_FALSE(refused.fits());
  ASSERT_TRUE(refused.with_host_memory);
  const Row& row = *refused.with_host_memory;
  EXPECT_GT(row.host_bytes, 1'000'000'000u);
  EXPECT_TRUE(row.fits);
  const Answer taken = beside(row.host_bytes);  // with so much it does fit, and with less it does not
  ASSERT_TRUE(taken.fits());
  EXPECT_FALSE(taken.with_host_memory);
  EXPECT_EQ(taken.cheapest->host_bytes, row.host_bytes);
  EXPECT_FALSE(beside(row.host_bytes - 1).fits());
  const Question none =
      parse_question({"--engine", "oomlab", "--model", "llama-3.1-70b", "--gpu", "t4", "--numbers", "same"}).value();
  EXPECT_FALSE(answer(none).with_host_memory);  // no host memory is missing there
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
