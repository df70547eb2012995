// What fit says first: of the reader's program in PyTorch.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <regex>
#include <sstream>
#include <tuple>

#include "../../bench/fitting/answer.h"
#include "asked.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;

std::string first_line_of(const std::string& words) {
  const Question question = asked(words);
  return first_line(question, answer_reader(question));
}

bool says(const std::string& question, const std::string& pattern) {
  const std::string line = first_line_of(question);
  const bool matches = std::regex_match(line, std::regex(pattern));
  if (!matches) std::printf("%s\n", line.c_str());
  return matches;
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
  EXPECT_TRUE(
      says("--model llama3-8b --gpu 4090",
           "does not fit: 1[012]\\d\\.\\d GiB too many; LoRA( with gradient checkpointing)? needs 2[01]\\.\\d of 23.5 "
           "GiB, QLoRA 1[345]\\.\\d"));
  EXPECT_TRUE(says("--model llama3-8b --gpu 4090 --method qlora",
                   "fits: 1[345]\\.\\d of 23.5 GiB with PyTorch and 4-bit weights and BF16, QLoRA trained"));
}

TEST(FitReader, ASevenBillionModelOnAT4) {
  EXPECT_TRUE(says("--model mistral-7b --gpu t4",
                   "does not fit: 1[012]\\d\\.\\d GiB too many; QLoRA needs [78]\\.\\d\\d of 14.6 GiB"));
}

TEST(FitReader, ASeventyBillionModelOnEightA100s) {
  EXPECT_TRUE(
      says("--model llama-3.1-70b --gpus 8xa100-80gb --batch 8",
           "does not fit: 1[34]\\d\\.\\d GiB too many; LoRA( with gradient checkpointing)? needs 3\\d\\.\\d of 79.1 "
           "GiB, QLoRA [56]\\d\\.\\d"));
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
  EXPECT_TRUE(std::regex_search(
      words, std::regex("^how large a card: 1[34]\\d\\.\\d GiB for all parameters, \\d+\\.\\d for LoRA")))
      << words;
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

// No smaller passes than must be: the largest that fit, of those that divide the batch.
TEST(FitReader, PassesAreAsLargeAsTheyCanBe) {
  const Question question = asked("--model google/vit-base-patch16-224 --gpu t4 --batch 4096 --fragmentation 2");
  const ReaderAnswer found = answer_reader(question);
  ASSERT_TRUE(found.changed);
  EXPECT_TRUE(found.changed->fits());
  const HfStep& step = found.changed->step;
  EXPECT_GT(step.batch, 16u);
  EXPECT_EQ(step.batch * step.micro_batches, 4096u);
  HfStep twice = step;
  twice.batch *= 2;
  const std::uint64_t live = huggingface_peak(*question.shape, twice).bytes.total();
  EXPECT_GT(live + live / 50 + found.changed->outside + found.changed->spare, found.changed->memory);
}

// generate(): weights, keys and values, what one pass has beside them.
TEST(FitReader, GenerationIsThatOfTheModules) {
  const Question question = asked("--model qwen3-8b --task infer --gpu l4 --batch 2 --seq 3000 --prompt 1000");
  const GenerationAnswer found = answer_generation(question);
  EXPECT_EQ(found.as_is.asked.prompt, 1000u);
  EXPECT_EQ(found.as_is.asked.new_tokens, 2000u);
  const HfPeak peak = huggingface_generation_peak(
      nn::hf_model("qwen3-8b"), {.batch = 2, .prompt = 1000, .new_tokens = 2000, .weights = DType::bf16});
  EXPECT_EQ(found.as_is.peak.bytes, peak.bytes);
  EXPECT_TRUE(first_line(question, found, nullptr).starts_with("fits: "));
  // A tuple has all layers' keys and values twice, a dynamic cache one layer's.
  const Question tuple =
      asked("--model qwen3-8b --task infer --gpu l4 --batch 2 --seq 3000 --prompt 1000 --cache tuple");
  const std::uint64_t of_a_layer = 2 * 2999 * 2 * 8 * 128 * 2;
  EXPECT_EQ(answer_generation(tuple).as_is.live() - found.as_is.live(), 35 * of_a_layer);
  const Question many = asked("--model qwen3-8b --task infer --gpu l4 --batch 64 --seq 4096");
  const GenerationAnswer fewer = answer_generation(many);
  ASSERT_TRUE(!fewer.as_is.fits() && fewer.fewer);
  EXPECT_TRUE(fewer.fewer->fits());
  for (const std::string& line : lines_of(first_words(many, fewer, nullptr)))
    EXPECT_LE(columns(line), kMostColumns) << line;
  EXPECT_THROW(answer_generation(asked("--model bert-large --gpu l4 --task infer")), std::invalid_argument);
}

// QLoRA's codes are divided among cards, its scales are not.
TEST(FitReader, FourBitsAreDividedByFsdp) {
  const nn::HfShape shape = nn::hf_model("llama-3.1-8b");
  const auto live = [&](std::uint64_t cards) {
    HfStep step{.batch = 1,
                .seq = 128,
                .weights = DType::bf16,
                .autocast = DType::bf16,
                .checkpoint = true,
                .lora = HfLora{.four_bits = true},
                .ranks = HfRanks{.parallel = HfParallel::fsdp2, .count = cards, .compute = DType::bf16}};
    return huggingface_peak(shape, step).bytes[Category::parameters];
  };
  const std::uint64_t in_layers = nn::parameter_count(shape) - 2 * shape.vocabulary * shape.width;
  const std::uint64_t scales = in_layers / 64;
  EXPECT_GT(live(8), scales);
  EXPECT_LT(live(8), live(2));
  // Six eighths minus two eighths of the codes and of the rest, in 16 bits, are the difference; and a layer's adapters.
  const double all = double(in_layers) / 2 + 4.0 * double(shape.vocabulary) * double(shape.width);
  EXPECT_NEAR(double(live(2) - live(8)), all * 3 / 8, 0.1 * all);
  EXPECT_THROW((void)answer_reader(asked("--model llama-3.1-8b --gpus 8xa100-40gb --method qlora --sharding zero3")),
               std::invalid_argument);
  const Question question = asked("--model llama-3.1-70b --gpus 8xrtx4090 --method qlora --batch 8");
  const ReaderAnswer found = answer_reader(question);
  ASSERT_TRUE(found.as_is.step.ranks);
  EXPECT_EQ(found.as_is.step.ranks->parallel, HfParallel::fsdp2);
  const std::string words = first_words(question, found);
  EXPECT_NE(words.find("bnb_4bit_quant_storage=torch.bfloat16"), std::string::npos) << words;
  EXPECT_LE(lines_of(words).size(), kMostLines) << words;
}

// Whole layers on each of several cards: a share, and a layer more at most.
TEST(FitReader, GenerationOnSeveralCardsSplitsLayers) {
  const char* const words = "--model llama-3.1-70b --task infer --seq 4096 --gpus ";
  const auto of = [&](const char* cards) { return answer_generation(asked(std::string(words) + cards)).as_is; };
  const Generation one = of("1xa100-80gb"), two = of("2xa100-80gb"), four = of("4xa100-80gb");
  EXPECT_FALSE(one.fits());
  EXPECT_TRUE(four.fits());
  const std::uint64_t embedding = std::uint64_t(128256) * 8192 * 2;  // larger than a layer
  for (const auto& [way, cards] : {std::pair(&two, 2u), {&four, 4u}}) {
    const std::uint64_t share = one.peak.bytes[Category::parameters] / cards;
    EXPECT_GT(way->peak.bytes[Category::parameters], share);
    EXPECT_LT(way->peak.bytes[Category::parameters], share + embedding + 2);
    EXPECT_LT(way->peak.bytes[Category::activations], one.peak.bytes[Category::activations]);
  }
  Question question = asked(std::string(words) + "4xa100-80gb");
  for (const bool chinese : {false, true}) {
    question.chinese = chinese;
    for (const std::string& line : lines_of(first_words(question, answer_generation(question), nullptr)))
      EXPECT_LE(columns(line), kMostColumns) << line;
  }
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
  question.room.memory = answer_reader(question).as_is.device() + kContext.growth;
  EXPECT_TRUE(answer_reader(question).as_is.fits());
  --question.room.memory;
  const ReaderAnswer found = answer_reader(question);
  EXPECT_FALSE(found.as_is.fits());
  EXPECT_TRUE(first_line(question, found).starts_with("too close: "));
}

// --tp: all cards have all sequences, and a part of each matrix. Adapters share the batch instead.
TEST(FitReader, TensorParallelism) {
  const Question question = asked("--model llama-3.1-8b --gpu a100-80gb --tp 8 --batch 4 --seq 512");
  EXPECT_EQ(question.gpus, 8u);
  const ReaderAnswer found = answer_reader(question);
  EXPECT_EQ(found.as_is.step.batch, 4u);
  EXPECT_EQ(found.as_is.step.ranks->parallel, HfParallel::tensor);
  EXPECT_TRUE(found.as_is.fits());
  ASSERT_EQ(found.adapters.size(), 2u);
  for (const Way& way : found.adapters) {
    EXPECT_EQ(way.step.batch, 1u);
    EXPECT_NE(way.step.ranks->parallel, HfParallel::tensor);
  }
  const std::string words = first_words(question, found);
  EXPECT_NE(words.find("each of 8 by TP"), std::string::npos) << words;
  EXPECT_NE(words.find("(PyTorch):\n  $ torchrun --nproc-per-node 8"), std::string::npos) << words;
  EXPECT_NE(words.find("parallelize_module(model, mesh"), std::string::npos) << words;
  EXPECT_LE(code_of(question, found.as_is, question.framework).size(), kMostCodeLines);
  for (const char* wrong :
       {"--model llama-3.1-8b --gpu t4 --tp 2 --sharding fsdp", "--model llama-3.1-8b --gpu t4 --tp 2 --gpus 4",
        "--model llama-3.1-8b --gpu t4 --tp 2 --task infer", "--engine oomlab --model gpt2 --gpu t4 --tp 2"})
    EXPECT_THROW((void)asked(wrong), UsageError) << wrong;
  EXPECT_THROW((void)answer_reader(asked("--model gpt2 --gpu t4 --tp 2")), std::invalid_argument);
  EXPECT_THROW((void)answer_reader(asked("--model llama-3.1-8b --gpu t4 --tp 2 --method lora")), std::invalid_argument);
}

TEST(FitReader, MixturesOfExperts) {
  const Question question = asked("--model mixtral-8x7b --gpus 8xh100-sxm --batch 8");
  const ReaderAnswer found = answer_reader(question);
  EXPECT_TRUE(found.adapters.empty());
  const std::string words = first_words(question, found);
  EXPECT_NE(words.find("(adapters are not counted"), std::string::npos) << words;
  EXPECT_LE(std::ranges::count(words, '\n'), std::ptrdiff_t(kMostLines)) << words;
  EXPECT_THROW((void)answer_reader(asked("--model mixtral-8x7b --gpu h100 --method qlora")), std::invalid_argument);
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
        "--model gpt2 --gpu t4 --precision bf16 --attn-implementation eager --batch 512",
        "--model Mixtral-8x22B-Instruct-v0.1 --gpus 8xh100 --batch 64 --host-memory 2000GB",
        "--model DeepSeek-R1-Distill-Llama-70B --gpus 8xh100 --tp 8 --batch 64 --gradient-checkpointing"}) {
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

// What a change costs stands beside what it saves. Of a forward and a backward pass of frozen weights a forward pass is
// the half, of one of trained weights the third.
TEST(FitReader, SaysWhatAChangeCosts) {
  for (const auto& [words, price, in_chinese] :
       {std::tuple("--model llama3-8b --gpu 4090", "about half more operations)", "，运算约多一半）"),
        {"--model llama-3.2-1b --gpu rtx-3060", "about a third more operations)", "，运算约多三分之一）"}}) {
    Question question = asked(words);
    const ReaderAnswer found = answer_reader(question);
    const std::string text = first_words(question, found);
    EXPECT_NE(text.find("gradient checkpointing (saves "), std::string::npos) << text;
    EXPECT_NE(text.find(price), std::string::npos) << text;
    question.chinese = true;
    EXPECT_NE(first_words(question, found).find(in_chinese), std::string::npos) << first_words(question, found);
  }
}

TEST(FitReader, JsonHasItBesideTheCourse) {
  const Question question = asked("--model gpt2 --gpu t4");
  Answer found = answer(question);
  EXPECT_NE(json_of(question, found).find("\"pytorch\": null"), std::string::npos);
  found.reader = answer_reader(question);
  const std::string json = json_of(question, found);
  for (const char* const part : {"\"pytorch\": {", "\"line\": \"fits: ", "\"device_bytes\": ", "\"adapters\": []",
                                 "\"live_before_bytes\": null", "\"changes\": []", "\"deepspeed\": ["})
    EXPECT_NE(json.find(part), std::string::npos) << part << "\n" << json;
}

// As the first lines have it: each change, and what is live after it.
TEST(FitReader, JsonHasTheChangesOneByOne) {
  const Question question = asked("--model llama-3.2-1b --gpu rtx-3060 --lang zh");
  Answer found;
  found.reader = answer_reader(question);
  ASSERT_TRUE(found.reader->changed);
  const Way& way = *found.reader->changed;
  const auto steps = change_steps(way, false);
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back().after, way.live());
  EXPECT_GT(way.after.front(), way.live());
  const std::string json = json_of(question, found);
  for (const ChangeStep& step : change_steps(way, true)) {
    EXPECT_NE(json.find("\"" + step.words + "\""), std::string::npos) << step.words;
    EXPECT_NE(json.find("\"costs\": \"" + step.costs + "\""), std::string::npos) << step.costs;
    EXPECT_NE(json.find(fmt::format("\"live_bytes\": {}", step.after)), std::string::npos) << step.after;
  }
}

}  // namespace
