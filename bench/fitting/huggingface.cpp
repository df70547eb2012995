// What Hugging Face's modules need at their peak, for settings on standard input: one line each of words like
//
//   family=llama layers=4 width=256 heads=8 kv_heads=2 mlp=688 vocabulary=1000 batch=2 seq=256 autocast=bf16 lora=16
//
// or `model=llama3.1-8b batch=1 seq=2048 weights=bf16 lora=16`, a model of the table in huggingface_models.cpp, and one
// line of JSON each on standard output. `device=cpu`: with a CPU's operators, as bench/peers/huggingface_training.py
// measures them. `replay=1`: also what PyTorch's allocator makes of it. --models: the table of models instead. Bad input:
// one line, exit 64.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string_view>

#include "memory/text.h"
#include "plan/model/huggingface_config.h"
#include "plan/pytorch/generation.h"
#include "plan/pytorch/huggingface.h"
#include "plan/pytorch/reserved.h"

namespace {

using oomlab::Category, oomlab::DType;
using oomlab::fit::HfGeneration, oomlab::fit::HfParallel, oomlab::fit::HfRanks;
using oomlab::fit::HfLora, oomlab::fit::HfLoss, oomlab::fit::HfOptimizer, oomlab::fit::HfStep, oomlab::fit::TorchDevice;
using oomlab::nn::HfActivation, oomlab::nn::HfFamily, oomlab::nn::HfShape;

std::uint64_t number(const std::string& key, const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::invalid_argument(fmt::format("{}={} is no whole number", key, text));
  return value;
}

std::size_t one_of(const std::string& key, const std::string& text, std::initializer_list<const char*> names) {
  const auto found = std::ranges::find_if(names, [&](const char* name) { return text == name; });
  if (found == names.end()) throw std::invalid_argument(fmt::format("{}={} is unknown", key, text));
  return static_cast<std::size_t>(found - names.begin());
}

DType dtype(const std::string& key, const std::string& text) {
  const std::optional<DType> type = oomlab::dtype_named(text);
  if (!type || std::ranges::find(oomlab::kModelDTypes, *type) == oomlab::kModelDTypes.end())
    throw std::invalid_argument(fmt::format("{}={} is unknown", key, text));
  return *type;
}

// What a family has where nobody says otherwise.
HfShape shape_of(HfFamily family) {
  HfShape shape{.name = oomlab::nn::name_of(family), .family = family, .positions = 4096};
  const bool old = family == HfFamily::gpt2 || family == HfFamily::bert || family == HfFamily::vit;
  shape.qkv_bias = old || family == HfFamily::qwen2;
  shape.tied = (old && family != HfFamily::vit) || shape.gemma();
  if (family == HfFamily::gpt2) shape.activation = HfActivation::gelu_new;
  if (family == HfFamily::bert || family == HfFamily::vit || shape.gemma()) shape.activation = HfActivation::gelu;
  shape.scores_capped = shape.logits_capped = family == HfFamily::gemma2;
  if (family == HfFamily::bert) shape.types = 2;
  return shape;
}

// By replay, as PyTorch comes and with expandable segments.
std::string held(const std::vector<oomlab::fit::MemoryEvent>& events) {
  using oomlab::fit::TorchSegments;
  const auto native = oomlab::fit::reserved_by_replay(events, TorchSegments::native);
  const auto expandable = oomlab::fit::reserved_by_replay(events, TorchSegments::expandable);
  return fmt::format(R"(, "allocated": {}, "reserved": {}, "reserved_expandable": {})", native.allocated, native.peak,
                     expandable.peak);
}

std::string answer(const std::string& line) {
  HfShape shape;
  HfStep step;
  HfLora lora;
  HfRanks ranks;
  HfGeneration generation{.prompt = 0};
  bool adapted = false, several = false, replayed = false;
  double dropout = 0;
  const auto into = [](std::uint64_t& to) {
    return [&to](const std::string& key, const std::string& text) { to = number(key, text); };
  };
  const auto flag = [](bool& to) {
    return [&to](const std::string& key, const std::string& text) { to = one_of(key, text, {"0", "1"}) == 1; };
  };
  const auto percent = [](double& to) {
    return [&to](const std::string& key, const std::string& text) { to = double(number(key, text)) / 100; };
  };
  const std::map<std::string, std::function<void(const std::string&, const std::string&)>> words{
      {"layers", into(shape.layers)},
      {"width", into(shape.width)},
      {"heads", into(shape.heads)},
      {"kv_heads", into(shape.kv_heads)},
      {"head_dim", into(shape.head_dim)},
      {"mlp", into(shape.mlp)},
      {"experts", into(shape.experts)},
      {"active", into(shape.active)},
      {"vocabulary", into(shape.vocabulary)},
      {"positions", into(shape.positions)},
      {"window", into(shape.window)},
      {"full_every", into(shape.full_every)},
      {"rotary_dim", into(shape.rotary_dim)},
      {"channels", into(shape.channels)},
      {"patch", into(shape.patch)},
      {"labels", into(shape.labels)},
      {"tied", flag(shape.tied)},
      {"dropout_percent", percent(dropout)},
      {"batch", into(step.batch)},
      {"seq", into(step.seq)},
      {"micro_batches", into(step.micro_batches)},
      {"checkpoint", flag(step.checkpoint)},
      {"weights", [&](auto& key, auto& text) { step.weights = dtype(key, text); }},
      {"autocast", [&](auto& key, auto& text) { step.autocast = dtype(key, text); }},
      {"attention",
       [&](auto& key, auto& text) {
         step.eager_attention = one_of(key, text, {"sdpa", "eager"}) == 1;
       }},
      {"loss",
       [&](auto& key, auto& text) {
         step.loss = static_cast<HfLoss>(one_of(key, text, {"full", "chunked", "liger"}));
       }},
      {"optimizer",
       [&](auto& key, auto& text) {
         step.optimizer = static_cast<HfOptimizer>(
             one_of(key, text, {"adamw_foreach", "adamw_fused", "adamw_8bit", "adamw_paged", "adafactor", "sgd"}));
       }},
      {"prompt", into(generation.prompt)},
      {"new_tokens", into(generation.new_tokens)},
      {"beams", into(generation.beams)},
      {"static_cache", flag(generation.static_cache)},
      {"lora", [&](auto& key, auto& text) { lora.rank = number(key, text), adapted = true; }},
      {"targets",
       [&](auto& key, auto& text) {
         lora.all_linear = one_of(key, text, {"default", "all"}) == 1;
       }},
      {"lora_dropout_percent", percent(lora.dropout)},
      {"four_bits", flag(lora.four_bits)},
      {"parallel",
       [&](auto& key, auto& text) {
         ranks.parallel =
             static_cast<HfParallel>(one_of(key, text, {"ddp", "fsdp2", "tensor", "zero1", "zero2", "zero3"}));
         several = true;
       }},
      {"ranks", into(ranks.count)},
      {"bucket_view", flag(ranks.bucket_view)},
      {"offload_optimizer", flag(ranks.offload_optimizer)},
      {"offload_parameters", flag(ranks.offload_parameters)},
      {"bucket", into(ranks.bucket)},
      {"compute", [&](auto& key, auto& text) { ranks.compute = dtype(key, text); }},
      {"reduce", [&](auto& key, auto& text) { ranks.reduce = dtype(key, text); }},
      {"replay", flag(replayed)},
      {"device",
       [&](auto& key, auto& text) {
         step.device = static_cast<TorchDevice>(one_of(key, text, {"cpu", "cuda"}));
       }},
  };
  std::istringstream stream(line);
  for (std::string word; stream >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) throw std::invalid_argument(fmt::format("'{}' is not KEY=VALUE", word));
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == "model") {
      shape = oomlab::nn::hf_model(value);
      dropout = shape.hidden_dropout;
      continue;
    }
    if (key == "family") {
      shape = shape_of(static_cast<HfFamily>(one_of(key, value,
                                                    {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3",
                                                     "mixtral", "qwen3_moe", "gpt2", "bert", "vit"})));
      continue;
    }
    const auto found = words.find(key);
    if (found == words.end()) throw std::invalid_argument(fmt::format("'{}' is unknown", key));
    if (shape.name.empty()) throw std::invalid_argument("begin with family=NAME or model=NAME");
    found->second(key, value);
  }
  if (shape.name.empty()) throw std::invalid_argument("begin with family=NAME or model=NAME");
  if (shape.heads == 0) throw std::invalid_argument("heads are missing");
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  if (shape.head_dim == 0) shape.head_dim = shape.width / shape.heads;
  if (shape.family == HfFamily::gpt2 || shape.family == HfFamily::bert)
    shape.embedding_dropout = shape.attention_dropout = shape.hidden_dropout = dropout;
  if (adapted) step.lora = lora;
  if (several) step.ranks = ranks;
  generation.batch = step.batch;
  generation.weights = step.weights;
  generation.eager_attention = step.eager_attention;
  generation.device = step.device;
  const oomlab::fit::HfPeak peak = generation.prompt > 0
                                       ? oomlab::fit::huggingface_generation_peak(shape, generation, replayed)
                                       : oomlab::fit::huggingface_peak(shape, step, replayed);
  const auto of = [&](Category category) { return peak.bytes[category]; };
  const std::string more = replayed ? held(peak.events) : "";
  return fmt::format(
      R"({{"peak": {}, "parameters": {}, "gradients": {}, "optimizer": {}, "activations": {}, "data": {}, "moment": "{}", "checked": {}, "count": {}, "trained": {}{}}})",
      peak.bytes.total(), of(Category::parameters), of(Category::gradients), of(Category::optimizer),
      of(Category::activations), of(Category::data), peak.moment, peak.checked, oomlab::nn::parameter_count(shape),
      peak.trained, more);
}

// The table of models, in the words above, with their parameters.
void print_models() {
  for (const HfShape& shape : oomlab::nn::hf_models()) {
    std::string setting =
        fmt::format("family={} layers={} width={} heads={} kv_heads={} head_dim={} mlp={} positions={} tied={}",
                    oomlab::nn::name_of(shape.family), shape.layers, shape.width, shape.heads, shape.kv_heads,
                    shape.head_dim, shape.mlp, shape.positions, shape.tied ? 1 : 0);
    setting += shape.vocabulary
                   ? fmt::format(" vocabulary={}", shape.vocabulary)
                   : fmt::format(" patch={} channels={} labels={}", shape.patch, shape.channels, shape.labels);
    if (shape.experts) setting += fmt::format(" experts={} active={}", shape.experts, shape.active);
    std::cout << fmt::format(R"({{"name": "{}", "setting": "{}", "parameters": {}}})", shape.name, setting,
                             oomlab::nn::parameter_count(shape))
              << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  oomlab::open_standard_descriptors();
  const std::string_view option = argc == 2 ? argv[1] : "";
  if (option != "" && option != "--models")
    return oomlab::complain("fit_huggingface", "takes settings on standard input, or --models", 64);
  if (option == "--models") {
    print_models();
    if (std::cout.flush()) return 0;
    return oomlab::complain("fit_huggingface", "the output could not be written", 1);
  }
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << answer(line) << "\n";
    } catch (const std::exception& error) {  // bad words, or figures that no 64 bits hold
      return oomlab::complain("fit_huggingface", error.what(), 64);
    }
  }
  if (std::cout.flush()) return 0;
  return oomlab::complain("fit_huggingface", "the output could not be written", 1);
}
