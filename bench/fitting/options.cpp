#include "options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "dtype.h"
#include "plan/language.h"
#include "plan/names.h"
#include "plan/option.h"
#include "plan/text.h"

namespace oomlab::fit {

namespace {

constexpr std::uint64_t kMostRank = 65536, kMostPixels = 65536, kMostAccumulation = 1'000'000, kMostTokens = 1'000'000,
                        kMostCards = 1024;

std::vector<std::string> names_of(const auto& all) {
  std::vector<std::string> names;
  for (const auto& one : all) names.emplace_back(name_of(one));
  return names;
}

double share(const std::string& option, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0.05 && value <= 1))
    throw UsageError(fmt::format("{} '{}' is not allowed; write a part of the memory, 0.05 to 1", option, text));
  return value;
}

// "224", or "800x1333": height and width.
nn::InputSize input_size(const std::string& option, const std::string& typed) {
  const std::string text = lower_case(typed);
  const std::size_t x = text.find('x');
  const auto side = [&](const std::string& part) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value == 0 || value > kMostPixels)
      throw UsageError(
          fmt::format("{} '{}' is not allowed; write pixels of a side, 1 to {}, or HEIGHTxWIDTH, such as "
                      "800x1333",
                      option, one_line(typed), kMostPixels));
    return value;
  };
  if (x == text.npos) return {side(text), side(text)};
  return {side(text.substr(0, x)), side(text.substr(x + 1))};
}

}  // namespace

std::uint64_t whole(const std::string& option, const std::string& text, std::uint64_t most) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0 || value > most)
    throw UsageError(fmt::format("{} '{}' is not allowed; write a whole number, 1 to {}", option, text, most));
  return value;
}

const std::map<std::string, std::vector<std::string>>& words_of_options() {
  static const std::map<std::string, std::vector<std::string>> all{
      {"--attn-implementation", {"sdpa", "eager"}},
      {"--cache", {"dynamic", "static", "tuple"}},
      {"--engine", names_of(kEngines)},
      {"--framework", {"trainer", "trl", "deepspeed", "torchtune"}},
      {"--lang", languages()},
      {"--largest", {"batch", "seq", "size"}},
      {"--loss", names_of(kHfLosses)},
      {"--method", names_of(kMethods)},
      {"--numbers", {"same", "adamw", "any"}},
      {"--optim", names_of(kHfOptimizers)},
      {"--precision", names_of(kModelDTypes)},
      {"--sharding", names_of(kSharding)},
      {"--task", {"train", "infer", "image"}},
      {"--to-host", {"optimizer", "all"}},
  };
  return all;
}

std::size_t word(const std::string& option, const std::string& text) {
  return parse_word(option, text, words_of_options().at(option));
}

Options reader_options(Question& question) {
  ReaderSettings& reader = question.reader;
  ServingSettings& serving = question.serving;
  return {
      {"--method", [&](auto& o, auto& text) { reader.method = kMethods[word(o, text)]; }},
      {"--loss", [&](auto& o, auto& text) { reader.loss = kHfLosses[word(o, text)]; }},
      {"--optim", [&](auto& o, auto& text) { reader.optimizer = kHfOptimizers[word(o, text)]; }},
      {"--weights", [&](auto&, auto& text) { question.serving.weights = lower_case(text); }},
      {"--gradient-accumulation",
       [&](auto& o, auto& text) { reader.accumulation = whole(o, text, kMostAccumulation); }},
      {"--sharding", [&](auto& o, auto& text) { reader.sharding = kSharding[word(o, text)]; }},
      {"--to-host",
       [&](auto& o, auto& text) {
         reader.offload_weights = word(o, text) == 1;
         reader.offload_optimizer = true;
       }},
      {"--prompt", [&](auto& o, auto& text) { question.prompt = whole(o, text, std::uint64_t(1) << 30); }},
      {"--cache", [&](auto& o, auto& text) { question.cache = static_cast<Cache>(word(o, text)); }},
      {"--lora-rank", [&](auto& o, auto& text) { reader.lora_rank = whole(o, text, kMostRank); }},
      {"--attn-implementation", [&](auto& o, auto& text) { reader.eager_attention = word(o, text) == 1; }},
      {"--engine", [&](auto& o, auto& text) { question.engine = kEngines[word(o, text)]; }},
      {"--size", [&](auto& o, auto& text) { question.size = whole(o, text, kMostRank); }},
      {"--with",
       [&](auto& o, auto& text) {
         for (const std::string& lever : split(text, ','))
           question.with.insert(kPipelineWords[parse_word(o, lever, words_of_pipelines())].lever);
       }},
      {"--input", [&](auto& o, auto& text) { question.input = input_size(o, text); }},
      {"--cache-type", [&](auto&, auto& text) { serving.cache = lower_case(text); }},
      {"--gpu-memory-utilization", [&](auto& o, auto& text) { serving.utilization = share(o, text); }},
      {"--max-num-batched-tokens", [&](auto& o, auto& text) { serving.batched_tokens = whole(o, text, kMostTokens); }},
      {"--max-num-seqs", [&](auto& o, auto& text) { serving.sequences = whole(o, text, kMostTokens); }},
      {"--tp", [&](auto& o, auto& text) { serving.cards = whole(o, text, kMostCards); }},
      {"--ngl", [&](auto& o, auto& text) { serving.layers = text == "0" ? 0 : whole(o, text, kMostTokens); }},
      {"--ubatch", [&](auto& o, auto& text) { serving.micro_batch = whole(o, text, kMostTokens); }},
      {"--framework", [&](auto& o, auto& text) { question.framework = static_cast<Framework>(word(o, text)); }},
      {"--largest", [&](auto& o, auto& text) { question.largest = static_cast<Largest>(word(o, text)); }},
      {"--lang", [&](auto&, auto& text) { question.chinese = asks_for_chinese(text); }},
  };
}

std::string reader_help() {
  return fmt::format(
      R"(your program, in PyTorch
  --method WORD        full (default), lora or qlora
  --lora-rank N        of the adapters (default 16, at all linear layers)
  --optim NAME         {0}
  --loss WORD          full (default: all logits), chunked (in eight), or liger
  --weights WORD       in what the model is loaded: fp32 (default), bf16, fp16; beside adapters 16 bits
  --attn-implementation WORD  sdpa (default) or eager
  --gradient-accumulation N   the batch in so many passes
  --gradient-checkpointing    layers recomputed, as gradient_checkpointing_enable() does
  --expandable-segments       PYTORCH_ALLOC_CONF=expandable_segments:True
  --sharding WORD      of several cards: ddp, fsdp (default where ddp does not fit), zero1, zero2, zero3 (DeepSpeed's)
  --to-host WORD       with ZeRO, what is in host memory: optimizer, or all, the weights too
  --prompt N           with --task infer: so many of --seq tokens are the prompt (default: all but at most 256)
  --cache WORD         dynamic (default), static, or tuple: as models had it before transformers 4.36
  --input N            of resnet50, mobilenet-v3-large, unet:4-64, resnet50-fpn and their like: images of N x N pixels,
                       or HEIGHTxWIDTH (default 224; of a detector's backbone, resnet50-fpn, 800x1333)
  --largest WORD       the largest batch, seq, or size of images, that a card holds
  --framework WORD     in whose words: trainer (default), trl, deepspeed or torchtune
  --engine WORD        whose program: pytorch (default), oomlab (this course's own), vllm or llama.cpp
  --lang WORD          en or zh: of the first lines
a server: --engine vllm or llama.cpp, --batch requests of --seq tokens at once
  --weights WORD       vllm: bf16, fp16, fp32, fp8, awq or gptq; llama.cpp: q4_k_m (default), q8_0, iq4_xs, ...
  --cache-type WORD    of keys and values; vllm: auto or fp8; llama.cpp: f16 (default), q8_0, q4_0, ...
  --tp N               vllm, and training in PyTorch: cards that share each layer, as --gpus says
  --gpu-memory-utilization P  vllm: its part of a card (default 0.9); --enforce-eager: no CUDA graphs
  --max-num-batched-tokens N, --max-num-seqs N   vllm: of a pass (default: as its server has for the card)
  --ngl N, --ubatch N  llama.cpp: layers on cards (default all), tokens of a pass (default 512)
images that diffusers makes: --model {1}; --batch images of a call
  --size N             of N x N pixels (default: as the model was trained)
  --with A,B           what is switched on; --without leaves it out of what is tried: {2}
)",
      fmt::join(names_of(kHfOptimizers), ", "), fmt::join(names_of_pipelines(), ", "),
      fmt::join(words_of_pipelines(), ", "));
}

void read_engine(Question& question, const std::string& task, bool gpus_named) {
  ServingSettings& serving = question.serving;
  const Engine engine = question.engine;
  if (!is_server(engine)) {
    if (!serving.weights.empty())
      question.reader.weights = kModelDTypes[parse_word("--weights", serving.weights, names_of(kModelDTypes))];
  } else {
    if (task == "train") throw UsageError(fmt::format("--engine {} serves; leave --task train out", name_of(engine)));
    question.training = false;
  }
  // In training of PyTorch's it is torch.distributed.tensor.parallel.
  const bool trained = serving.cards && engine == Engine::pytorch && question.training;
  if (trained && question.reader.sharding)
    throw UsageError(
        fmt::format("--tp and --sharding {} are two ways; say one of them", name_of(*question.reader.sharding)));
  if (trained && *serving.cards > 1) question.reader.sharding = HfParallel::tensor;
  const ServingSettings usual;
  const bool of_vllm = serving.batched_tokens || serving.sequences || (serving.cards && !trained) || serving.eager ||
                       serving.utilization != usual.utilization;
  if (of_vllm && engine != Engine::vllm)
    throw UsageError(
        "--gpu-memory-utilization, --max-num-..., --enforce-eager and, but in training, --tp are vLLM's: say --engine "
        "vllm");
  if ((serving.layers || serving.micro_batch) && engine != Engine::llama_cpp)
    throw UsageError("--ngl and --ubatch are llama.cpp's: say --engine llama.cpp");
  if (!serving.cache.empty() && !is_server(engine))
    throw UsageError("--cache-type is a server's: say --engine vllm or llama.cpp");
  if (serving.cards && gpus_named && *serving.cards != question.gpus)
    throw UsageError(fmt::format("--tp {} and --gpus {} differ; say one of them", *serving.cards, question.gpus));
  if (serving.cards) question.gpus = *serving.cards;
}

void require_of_network(const Question& question) {
  const bool single = question.precision.value_or(DType::fp32) == DType::fp32;
  if (question.engine != Engine::pytorch || question.reader.method != Method::full || !single)
    throw UsageError(
        "networks of images are planned as a whole and in FP32, without --engine, --method and --precision");
}

void require_of_pipeline(const Question& question) {
  if (question.engine != Engine::pytorch || question.reader.method != Method::full || question.gpus > 1)
    throw UsageError("pipelines that make images are planned on one card, without --engine and --method");
  if (question.precision == DType::bf16 && !question.card->has_bf16)
    throw UsageError(
        fmt::format("--precision bf16: a {} does not compute with BF16; take fp16 or fp32", question.card->title));
}

void require_no_pipeline(const Question& question, const std::string& task) {
  if (task == "image" || question.size > 0 || !question.with.empty() || question.largest == Largest::size)
    throw UsageError(fmt::format("--task image, --size, --with and --largest size are for {}",
                                 fmt::join(names_of_pipelines(), ", ")));
}

}  // namespace oomlab::fit
