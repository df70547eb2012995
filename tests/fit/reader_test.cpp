// What fit says first: of the reader's program in PyTorch.

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "../../bench/fitting/answer.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;

Question asked(const std::string& words) {
  std::istringstream in(words);
  std::vector<std::string> arguments;
  for (std::string word; in >> word;) arguments.push_back(word);
  return parse_question(arguments).value();
}

std::string first_line_of(const std::string& words) {
  const Question question = asked(words);
  return first_line(question, answer_reader(question));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// As a terminal shows them: characters of three bytes and more are two columns wide.
std::size_t columns(const std::string& line) {
  std::size_t n = 0;
  for (const unsigned char c : line) n += c >= 0xE0 ? 2 : (c & 0xC0) != 0x80;
  return n;
}

// Three questions that people ask.
TEST(FitReader, AnEightBillionModelOn24GB) {
  EXPECT_EQ(first_line_of("--model llama3-8b --gpu 4090"),
            "does not fit: 118.2 GiB too many; LoRA needs 20.3 of 23.5 GiB, QLoRA 14.1");
  EXPECT_EQ(first_line_of("--model llama3-8b --gpu 4090 --method qlora"),
            "fits: 14.1 of 23.5 GiB with PyTorch and 4-bit weights and BF16, QLoRA trained");
}

TEST(FitReader, ASevenBillionModelOnAT4) {
  const std::string line = first_line_of("--model mistral-7b --gpu t4");
  EXPECT_TRUE(line.starts_with("does not fit: 114.7 GiB too many; QLoRA needs 7.83 of 14.6 GiB")) << line;
}

TEST(FitReader, ASeventyBillionModelOnEightA100s) {
  const std::string line = first_line_of("--model llama-3.1-70b --gpus 8xa100-80gb --batch 8");
  EXPECT_EQ(line, "does not fit: 138.9 GiB too many; LoRA needs 35.8 of 79.1 GiB, QLoRA 58.8");
  const ReaderAnswer found = answer_reader(asked("--model llama-3.1-70b --gpus 8xa100-80gb --batch 8"));
  ASSERT_TRUE(found.as_is.step.ranks);
  EXPECT_EQ(found.as_is.step.ranks->parallel, HfParallel::fsdp2);
  EXPECT_EQ(found.as_is.step.batch, 1u);
  // A card has an eighth of what one card would have to hold.
  const ReaderAnswer ddp = answer_reader(asked("--model llama-3.1-70b --gpus 8xa100-80gb --batch 8 --sharding ddp"));
  EXPECT_NEAR(double(found.as_is.peak.bytes[Category::optimizer]),
              double(ddp.as_is.peak.bytes[Category::optimizer]) / 8, 1e6);
}

TEST(FitReader, SaysHowLargeACardMustBe) {
  const Question question = asked("--model qwen3-8b");
  const ReaderAnswer found = answer_reader(question);
  const std::string words = first_words(question, found);
  EXPECT_TRUE(words.starts_with("how large a card: 145.4 GiB for all parameters, ")) << words;
  EXPECT_NE(words.find("the smallest card"), std::string::npos) << words;
  EXPECT_NE(words.find("b200"), std::string::npos) << words;
}

TEST(FitReader, ItsBytesAreThoseOfTheModules) {
  const Question question =
      asked("--model Qwen/Qwen2.5-7B --batch 4 --seq 1024 --gpu a100-80 --method lora --lora-rank 8");
  const Way way = answer_reader(question).as_is;
  const HfPeak peak = huggingface_peak(nn::hf_model("qwen2.5-7b"), {.batch = 4,
                                                                    .seq = 1024,
                                                                    .weights = DType::bf16,
                                                                    .autocast = DType::bf16,
                                                                    .optimizer = HfOptimizer::adamw_fused,
                                                                    .lora = HfLora{.rank = 8}});
  EXPECT_EQ(way.peak.bytes, peak.bytes);
  EXPECT_GT(way.device(), peak.bytes.total() + question.room.context);
  EXPECT_LT(way.allocator, peak.bytes.total() / 4);  // by replay
  const Question percent = asked("--model gpt2 --gpu t4 --fragmentation 2");
  const Way two = answer_reader(percent).as_is;
  EXPECT_EQ(two.allocator, two.peak.bytes.total() / 50);
}

// What language models are trained in, where nothing is said; and what a card without BF16 does instead.
TEST(FitReader, ComputesAsTheCardDoes) {
  const auto autocast = [](const std::string& words) { return answer_reader(asked(words)).as_is.step.autocast; };
  EXPECT_EQ(autocast("--model gpt2 --gpu l4"), DType::bf16);
  EXPECT_EQ(autocast("--model gpt2 --gpu t4"), DType::fp16);
  EXPECT_EQ(autocast("--model gpt2 --gpu l4 --precision fp16"), DType::fp16);
  EXPECT_EQ(autocast("--model gpt2 --gpu l4 --precision fp32"), std::nullopt);
  EXPECT_EQ(autocast("--model google/vit-base-patch16-224 --gpu l4"), std::nullopt);
  const Question t4 = asked("--model gpt2 --gpu t4 --precision bf16");
  EXPECT_NE(first_words(t4, answer_reader(t4)).find("T4 has no BF16: planned with FP16"), std::string::npos);
  const Question l4 = asked("--model gpt2 --gpu l4 --precision bf16");
  EXPECT_EQ(first_words(l4, answer_reader(l4)).find("no BF16"), std::string::npos);
}

// The changes make it fit, and without any one of them it does not.
TEST(FitReader, ChangesNothingInVain) {
  for (const char* const words :
       {"--model gpt2-xl --gpu 3060 --numbers any", "--model llama-3.2-1b --batch 8 --memory 24GB",
        "--model qwen3-0.6b --batch 4 --gpu t4", "--model bert-large --batch 32 --memory 8GB",
        "--model llama-2-7b --gpu a100-80"}) {
    const Question question = asked(words);
    const ReaderAnswer found = answer_reader(question);
    ASSERT_FALSE(found.as_is.fits()) << words;
    ASSERT_TRUE(found.changed) << words;
    const Way& changed = *found.changed;
    EXPECT_TRUE(changed.fits()) << words;
    ASSERT_EQ(changed.after.size(), changed.changes.size() + 1) << words;
    EXPECT_EQ(changed.after.front(), found.as_is.peak.bytes.total()) << words;
    EXPECT_EQ(changed.after.back(), changed.peak.bytes.total()) << words;
  }
}

TEST(FitReader, TheLargestIsTheLargest) {
  const Question question = asked("--model bert-large --gpu rtx3060 --fragmentation 2 --largest batch");
  const ReaderAnswer found = answer_reader(question);
  ASSERT_EQ(found.largest.size(), 2u);
  for (const LargestOf& one : found.largest) {
    ASSERT_GT(one.most, 1u);
    EXPECT_TRUE(one.way.fits());
    HfStep step = one.way.step;
    step.batch = one.most + 1;
    const std::uint64_t live = huggingface_peak(*question.shape, step).bytes.total();
    EXPECT_GT(live + live / 50 + one.way.outside + one.way.spare, one.way.memory);
  }
  const std::string line = first_line(question, found);
  EXPECT_TRUE(line.starts_with("largest batch: " + std::to_string(found.largest[0].most) + " with ")) << line;
  const Question longest = asked("--model llama-3.2-1b --method lora --gpu l4 --largest seq");
  EXPECT_TRUE(first_line(longest, answer_reader(longest)).starts_with("largest seq: "));
}

// A context that may grow is no room: less than the reserve is "too close", and not "fits".
TEST(FitReader, TooCloseIsNoFit) {
  Question question = asked("--model gpt2 --gpu l4 --fragmentation 2");
  question.room.memory = answer_reader(question).as_is.device() + kReserve;
  EXPECT_TRUE(answer_reader(question).as_is.fits());
  --question.room.memory;
  const ReaderAnswer found = answer_reader(question);
  EXPECT_FALSE(found.as_is.fits());
  EXPECT_TRUE(first_line(question, found).starts_with("too close: "));
}

TEST(FitReader, ModelsByTheNamesThatPeopleType) {
  for (const auto& [typed, name] : {std::pair("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
                                    {"Qwen/Qwen3-8B", "Qwen/Qwen3-8B"},
                                    {"llama3-8b", "meta-llama/Meta-Llama-3-8B"},
                                    {"mistral-7b", "mistralai/Mistral-7B-v0.1"},
                                    {"gemma-2-9b-it", "google/gemma-2-9b"},
                                    {"llama-3.1-70b", "meta-llama/Llama-3.1-70B"},
                                    {"gpt-2", "openai-community/gpt2"}})
    EXPECT_EQ(asked(std::string("--gpu l4 --model ") + typed).shape->name, name) << typed;
  EXPECT_TRUE(asked("--gpu l4 --model meta-llama/Llama-3.1-8B").course);
  EXPECT_FALSE(asked("--gpu l4 --model qwen3-8b").course);
}

TEST(FitReader, FirstWordsAreAtMost25LinesOf100Columns) {
  for (const char* const words :
       {"--model llama3-8b --gpu 4090", "--model llama-3.1-70b --gpu t4 --batch 64",
        "--model gpt2-xl --gpu 3060 --batch 8", "--model qwen3-8b",
        "--model deepseek-ai/DeepSeek-R1-Distill-Qwen-14B --gpu h100 --batch 16 --method lora",
        "--model google/vit-base-patch16-224 --gpu t4 --batch 4096", "--model bert-large --gpu rtx3060 --largest batch",
        "--model deepseek-ai/DeepSeek-R1-Distill-Llama-70B --gpu a100 --largest seq --batch 64",
        "--model gpt2 --gpu t4 --precision bf16 --attention eager --batch 512"}) {
    Question question = asked(words);
    const ReaderAnswer found = answer_reader(question);
    for (const Framework framework : {Framework::trainer, Framework::trl, Framework::deepspeed, Framework::torchtune})
      for (const bool chinese : {false, true}) {
        question.framework = framework;
        question.chinese = chinese;
        const std::string text = first_words(question, found);
        const std::vector<std::string> lines = lines_of(text);
        EXPECT_LE(lines.size(), kMostLines) << text;
        for (const std::string& line : lines) EXPECT_LE(columns(line), kMostColumns) << line << "\n" << text;
        EXPECT_FALSE(lines.back().empty());
      }
  }
}

TEST(FitReader, JsonHasItBesideTheCourse) {
  const Question question = asked("--model gpt2 --gpu t4");
  Answer found = answer(question);
  EXPECT_NE(json_of(question, found).find("\"pytorch\": null"), std::string::npos);
  found.reader = answer_reader(question);
  const std::string json = json_of(question, found);
  for (const char* const part : {"\"pytorch\": {", "\"line\": \"fits: ", "\"device_bytes\": ", "\"adapters\": []"})
    EXPECT_NE(json.find(part), std::string::npos) << part << "\n" << json;
}

}  // namespace
