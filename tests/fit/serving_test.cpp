// What fit says first of a server: vLLM or llama.cpp.

#include <gtest/gtest.h>

#include <sstream>

#include "../../bench/fitting/answer.h"
#include "../../bench/fitting/words.h"
#include "asked.h"
#include "plan/option.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;

ServingAnswer answer_to(const std::string& words) { return answer_serving(asked(words)); }

// Programs that ran out of memory, or did not start: none of them fits. Sources: docs/fit_engines.md.
TEST(FitServing, WhatRanOutDoesNotFit) {
  for (const char* const words :
       {"--engine vllm --model llama-3.1-8b --memory 22.07GiB --seq 131072 --max-num-batched-tokens 2048 "
        "--max-num-seqs 1",
        "--engine vllm --model qwen2.5-7b --weights awq --memory 6GiB --seq 4200 --max-num-batched-tokens 4200",
        "--engine llama.cpp --model llama-3.1-8b --weights Q4_K_M --gpu rtx3060 --seq 131072"})
    EXPECT_FALSE(answer_to(words).as_is.fits()) << words;
  EXPECT_TRUE(answer_to("--engine llama.cpp --model llama-3.1-8b --weights Q4_K_M --gpu t4 --seq 8192").as_is.fits());
  EXPECT_TRUE(answer_to("--engine vllm --model meta-llama-3-8b --gpu h100 --seq 8192").as_is.fits());
}

// "GPU KV cache size": what logs say of a card, within the two figures or 4 % beside them. The second and the third say
// how much is not PyTorch's, too: of versions before 0.8 without the context.
TEST(FitServing, TheCacheOfVllmIsThatOfLogs) {
  const struct {
    const char* words;
    double tokens;
  } kLogs[] = {
      {"--engine vllm --model llama-3.1-8b --gpu l40s --seq 32768 --max-num-batched-tokens 8192 --max-num-seqs 1024",
       158656},
      {"--engine vllm --model llama-3.1-8b --memory 22.07GiB --seq 8192 --max-num-batched-tokens 2048 --max-num-seqs 1 "
       "--enforce-eager --context 54MB --reserve 0",
       37696},
      {"--engine vllm --model llama-3.1-8b --memory 79.14GiB --seq 8192 --max-num-batched-tokens 512 --max-num-seqs "
       "256 --enforce-eager --context 129MB --reserve 0",
       54.93 * (1 << 30) / 131072},
  };
  for (const auto& log : kLogs) {
    const ServingWay way = answer_to(log.words).as_is;
    EXPECT_LT(double(way.cached.low), log.tokens * 1.04) << log.words;
    EXPECT_GT(double(way.cached.high), log.tokens * 0.96) << log.words;
    EXPECT_LE(way.cached.low, way.cached.high);
  }
}

// Of two figures the larger one must fit.
TEST(FitServing, WhatMayBeTooMuchDoesNotFit) {
  ServingWay way{.rows = {{"a", "a", "a", {1, 3}, Known::assumed}}, .limit = 3};
  EXPECT_TRUE(way.fits());
  way.limit = 2;
  EXPECT_FALSE(way.fits());
  Question question = asked("--engine llama.cpp --model llama-3.1-8b --gpu rtx4090 --seq 8192");
  question.room.memory = answer_serving(question).as_is.needed().high - 1;
  EXPECT_TRUE(first_line(question, answer_serving(question)).starts_with("too close: "));
}

TEST(FitServing, ChangesMakeItFit) {
  for (const char* const words :
       {"--engine vllm --model llama-3.1-70b --gpus 2xh100-sxm --seq 8192", "--engine vllm --model qwen3-8b --gpu t4",
        "--engine vllm --model llama-3.1-8b --gpu l4 --batch 8 --seq 8192",
        "--engine llama.cpp --model qwen3-32b --gpu rtx4060 --seq 4096",
        "--engine llama.cpp --model llama-3.1-8b --weights q8_0 --gpu rtx3060 --seq 32768"}) {
    const ServingAnswer found = answer_to(words);
    ASSERT_FALSE(found.as_is.fits()) << words;
    EXPECT_FALSE(found.changed.empty()) << words;
    for (const ServingWay& way : found.changed) EXPECT_TRUE(way.fits()) << words;
  }
  // As many layers as the card holds, and not one more.
  const ServingAnswer layers = answer_to("--engine llama.cpp --model qwen3-32b --gpu rtx4060 --seq 4096");
  const ServingWay& fewer = layers.changed.back();
  EXPECT_GT(fewer.host, 0u);
  const std::string more = std::to_string(fewer.llama_cpp.layers_on_cards + 1);
  EXPECT_FALSE(answer_to("--engine llama.cpp --model qwen3-32b --gpu rtx4060 --seq 4096 --ngl " + more).as_is.fits());
}

TEST(FitServing, TheLargestIsTheLargest) {
  for (const char* const engine : {"vllm", "llama.cpp"}) {
    const std::string words = std::string("--model llama-3.1-8b --gpu l4 --seq 4096 --engine ") + engine;
    const ServingAnswer found = answer_to(words + " --largest batch");
    ASSERT_TRUE(found.largest) << engine;
    EXPECT_TRUE(found.largest->fits());
    const std::string most = std::to_string(found.largest->requests),
                      next = std::to_string(found.largest->requests + 1);
    EXPECT_TRUE(answer_to(words + " --batch " + most).as_is.fits()) << engine;
    EXPECT_FALSE(answer_to(words + " --batch " + next).as_is.fits()) << engine;
  }
}

TEST(FitServing, FirstWordsAreAtMost25LinesOf100Columns) {
  for (const char* const words :
       {"--engine vllm --model llama3-8b --gpu 4090",
        "--engine vllm --model llama-3.1-70b --gpus 2xh100-sxm --seq 8192",
        "--engine vllm --model deepseek-ai/DeepSeek-R1-Distill-Llama-70B --gpu a100 --largest seq",
        "--engine vllm --model qwen3-32b --gpu t4 --batch 1000 --seq 40960 --cache-type fp8",
        "--engine llama.cpp --model llama3-8b --gpu 4090", "--engine llama.cpp --model qwen3-32b --gpu rtx4060",
        "--engine llama.cpp --model llama-3.1-405b --gpus 8xa100-80gb --weights iq2_xxs --cache-type q4_0 --batch 4",
        "--engine llama.cpp --model gemma-3-27b --gpu h100 --largest batch --seq 131072"}) {
    Question question = asked(words);
    const ServingAnswer found = answer_serving(question);
    for (const bool chinese : {false, true}) {
      question.chinese = chinese;
      const std::string text = first_words(question, found);
      std::istringstream in(text);
      std::size_t lines = 0;
      for (std::string line; std::getline(in, line); ++lines) {
        EXPECT_LE(columns_of(line), kMostColumns) << line;
        EXPECT_FALSE(line.empty());
      }
      EXPECT_LE(lines, kMostLines) << text;
    }
  }
}

TEST(FitServing, SaysHowMuchAndHow) {
  const Question question = asked("--engine llama.cpp --model llama-3.1-8b --gpu rtx4090 --seq 8192 --cache-type q8_0");
  const ServingAnswer found = answer_serving(question);
  const std::string words = first_words(question, found);
  EXPECT_TRUE(words.starts_with("fits: ")) << words;
  EXPECT_NE(words.find("with llama.cpp and Q4_K_M weights"), std::string::npos) << words;
  EXPECT_NE(words.find("-c 8192 -np 1 -ngl 33 -ub 512 -fa on"), std::string::npos) << words;
  EXPECT_NE(words.find("-ctk q8_0 -ctv q8_0"), std::string::npos) << words;
  Answer whole;
  whole.serving = found;
  EXPECT_TRUE(fits(whole));
  const std::string json = json_of(question, whole);
  for (const char* const part : {"\"serving\": {", "\"needed_low\": ", "\"compute\": {", "\"as_is\": null"})
    EXPECT_NE(json.find(part), std::string::npos) << part;
}

// Each way has its name, and the command that serves it: of the one that the text shows, the same.
TEST(FitServing, EachWayHasItsCommand) {
  for (const auto& [words, named, written] :
       {std::tuple("--engine vllm --model llama-3.1-8b --gpu t4", "\"what\": \"FP8\"", "--quantization fp8\""),
        {"--engine llama.cpp --model qwen3-32b --gpu rtx4060", "\"what\": \"-ngl ", "-ngl 22 -ub 512"}}) {
    const Question question = asked(words);
    Answer whole;
    whole.serving = answer_serving(question);
    const std::string json = json_of(question, whole), text = first_words(question, *whole.serving);
    EXPECT_NE(json.find("\"what\": \"\""), std::string::npos) << "of the one that was asked for";
    EXPECT_NE(json.find(named), std::string::npos) << json;
    EXPECT_NE(json.find(written), std::string::npos) << json;
    const std::size_t from = text.find("  $ ") + 4;
    EXPECT_NE(json.find(text.substr(from, text.find('\n', from) - from - 2)), std::string::npos) << text;
    EXPECT_EQ(text.find(" 0 to 0 "), std::string::npos) << text;
  }
}

TEST(FitServing, WhatIsRefusedIsRefusedInOneLine) {
  for (const auto& [words, part] : {
           std::pair("--engine vllm --model gpt2 --gpu t4 --weights q4_k_m", "awq"),
           {"--engine vllm --model gpt2 --gpu t4 --cache-type q8_0", "auto, fp8"},
           {"--engine llama.cpp --model gpt2 --gpu t4 --weights awq", "q4_k_m"},
           {"--engine llama.cpp --model gpt2 --gpu t4 --cache-type fp8", "q8_0"},
           {"--engine vllm --model gpt2 --gpu t4 --ngl 3", "--engine llama.cpp"},
           {"--engine llama.cpp --model gpt2 --gpu t4 --tp 2", "--engine vllm"},
           {"--model gpt2 --gpu t4 --gpu-memory-utilization 0.5", "--engine vllm"},
           {"--model gpt2 --gpu t4 --task infer --cache-type q8_0", "server"},
           {"--engine vllm --model gpt2 --gpu t4 --gpu-memory-utilization 1.5", "0.05 to 1"},
           {"--engine vllm --model gpt2 --gpu t4 --task train", "leave --task train out"},
           {"--engine vllm --model gpt2 --gpus 4xt4 --tp 2", "differ"},
           {"--engine vllm --model gpt2", "--gpu"},
       }) {
    try {
      (void)asked(words);
      ADD_FAILURE() << words;
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_THROW(answer_to("--engine vllm --model bert-large --gpu t4"), std::invalid_argument);
  EXPECT_THROW(answer_to("--engine vllm --model gpt2 --gpus 5xt4"), std::invalid_argument);
  EXPECT_THROW(answer_to("--engine llama.cpp --model gpt2 --gpu t4 --cache-type q8_0 --attn-implementation eager"),
               std::invalid_argument);
}

}  // namespace
