// Models by the names that people type. Each row is what the model's config.json on huggingface.co says of its shape;
// bench/peers/huggingface_models.py counts their parameters with transformers' own modules, and a test compares.

#include <algorithm>
#include <stdexcept>

#include "plan/model/huggingface_config.h"
#include "plan/names.h"

namespace oomlab::nn {

namespace {

struct Row {
  const char* name;
  std::uint64_t layers, width, heads, kv_heads, head_dim, mlp, vocabulary, positions;
  bool tied;
  std::uint64_t window = 0, experts = 0, active = 0;
};

// clang-format off
constexpr Row kLlama[] = {
    {"meta-llama/Llama-2-7b-hf",                   32,  4096,  32, 32, 128, 11008,  32000,   4096, false},
    {"meta-llama/Llama-2-13b-hf",                  40,  5120,  40, 40, 128, 13824,  32000,   4096, false},
    {"meta-llama/Llama-2-70b-hf",                  80,  8192,  64,  8, 128, 28672,  32000,   4096, false},
    {"meta-llama/Meta-Llama-3-8B",                 32,  4096,  32,  8, 128, 14336, 128256,   8192, false},
    {"meta-llama/Meta-Llama-3-70B",                80,  8192,  64,  8, 128, 28672, 128256,   8192, false},
    {"meta-llama/Llama-3.1-8B",                    32,  4096,  32,  8, 128, 14336, 128256, 131072, false},
    {"meta-llama/Llama-3.1-70B",                   80,  8192,  64,  8, 128, 28672, 128256, 131072, false},
    {"meta-llama/Llama-3.1-405B",                 126, 16384, 128,  8, 128, 53248, 128256, 131072, false},
    {"meta-llama/Llama-3.2-1B",                    16,  2048,  32,  8,  64,  8192, 128256, 131072, true},
    {"meta-llama/Llama-3.2-3B",                    28,  3072,  24,  8, 128,  8192, 128256, 131072, true},
    {"meta-llama/Llama-3.3-70B",                   80,  8192,  64,  8, 128, 28672, 128256, 131072, false},
    {"codellama/CodeLlama-7b-hf",                  32,  4096,  32, 32, 128, 11008,  32016,  16384, false},
    {"lmsys/vicuna-7b-v1.5",                       32,  4096,  32, 32, 128, 11008,  32000,   4096, false},
    {"TinyLlama/TinyLlama-1.1B",                   22,  2048,  32,  4,  64,  5632,  32000,   2048, false},
    {"HuggingFaceTB/SmolLM2-135M",                 30,   576,   9,  3,  64,  1536,  49152,   8192, true},
    {"HuggingFaceTB/SmolLM2-360M",                 32,   960,  15,  5,  64,  2560,  49152,   8192, true},
    {"HuggingFaceTB/SmolLM2-1.7B",                 24,  2048,  32, 32,  64,  8192,  49152,   8192, true},
    {"deepseek-ai/DeepSeek-R1-Distill-Llama-8B",   32,  4096,  32,  8, 128, 14336, 128256, 131072, false},
    {"deepseek-ai/DeepSeek-R1-Distill-Llama-70B",  80,  8192,  64,  8, 128, 28672, 128256, 131072, false},
};
constexpr Row kMistral[] = {
    {"mistralai/Mistral-7B-v0.1",                  32,  4096,  32,  8, 128, 14336,  32000,  32768, false, 4096},
    {"mistralai/Mistral-7B-v0.2",                  32,  4096,  32,  8, 128, 14336,  32000,  32768, false},
    {"mistralai/Mistral-7B-v0.3",                  32,  4096,  32,  8, 128, 14336,  32768,  32768, false},
    {"mistralai/Mistral-Nemo-Base-2407",           40,  5120,  32,  8, 128, 14336, 131072, 128000, false},
    {"mistralai/Mistral-Small-24B-Base-2501",      40,  5120,  32,  8, 128, 32768, 131072,  32768, false},
    {"HuggingFaceH4/zephyr-7b-beta",               32,  4096,  32,  8, 128, 14336,  32000,  32768, false, 4096},
};
constexpr Row kQwen2[] = {
    {"Qwen/Qwen2.5-0.5B",                          24,   896,  14,  2,  64,  4864, 151936,  32768, true},
    {"Qwen/Qwen2.5-1.5B",                          28,  1536,  12,  2, 128,  8960, 151936, 131072, true},
    {"Qwen/Qwen2.5-3B",                            36,  2048,  16,  2, 128, 11008, 151936,  32768, true},
    {"Qwen/Qwen2.5-7B",                            28,  3584,  28,  4, 128, 18944, 152064, 131072, false},
    {"Qwen/Qwen2.5-14B",                           48,  5120,  40,  8, 128, 13824, 152064, 131072, false},
    {"Qwen/Qwen2.5-32B",                           64,  5120,  40,  8, 128, 27648, 152064, 131072, false},
    {"Qwen/Qwen2.5-72B",                           80,  8192,  64,  8, 128, 29568, 152064, 131072, false},
    {"Qwen/Qwen2-0.5B",                            24,   896,  14,  2,  64,  4864, 151936, 131072, true},
    {"Qwen/Qwen2-1.5B",                            28,  1536,  12,  2, 128,  8960, 151936, 131072, true},
    {"Qwen/Qwen2-7B",                              28,  3584,  28,  4, 128, 18944, 152064, 131072, false},
    {"deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",  28,  1536,  12,  2, 128,  8960, 151936, 131072, false},
    {"deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",    28,  3584,  28,  4, 128, 18944, 152064, 131072, false},
    {"deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",   48,  5120,  40,  8, 128, 13824, 152064, 131072, false},
    {"deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",   64,  5120,  40,  8, 128, 27648, 152064, 131072, false},
};
constexpr Row kQwen3[] = {
    {"Qwen/Qwen3-0.6B",                            28,  1024,  16,  8, 128,  3072, 151936,  40960, true},
    {"Qwen/Qwen3-1.7B",                            28,  2048,  16,  8, 128,  6144, 151936,  40960, true},
    {"Qwen/Qwen3-4B",                              36,  2560,  32,  8, 128,  9728, 151936,  40960, true},
    {"Qwen/Qwen3-8B",                              36,  4096,  32,  8, 128, 12288, 151936,  40960, false},
    {"Qwen/Qwen3-14B",                             40,  5120,  40,  8, 128, 17408, 151936,  40960, false},
    {"Qwen/Qwen3-32B",                             64,  5120,  64,  8, 128, 25600, 151936,  40960, false},
};
constexpr Row kGemma2[] = {
    {"google/gemma-2-2b",                          26,  2304,   8,  4, 256,  9216, 256000,   8192, true, 4096},
    {"google/gemma-2-9b",                          42,  3584,  16,  8, 256, 14336, 256000,   8192, true, 4096},
    {"google/gemma-2-27b",                         46,  4608,  32, 16, 128, 36864, 256000,   8192, true, 4096},
};
constexpr Row kGemma3[] = {  // of those that see, the language model
    {"google/gemma-3-270m",                        18,   640,   4,  1, 256,  2048, 262144,  32768, true, 512},
    {"google/gemma-3-1b",                          26,  1152,   4,  1, 256,  6912, 262144,  32768, true, 512},
    {"google/gemma-3-4b",                          34,  2560,   8,  4, 256, 10240, 262208, 131072, true, 1024},
    {"google/gemma-3-12b",                         48,  3840,  16,  8, 256, 15360, 262208, 131072, true, 1024},
    {"google/gemma-3-27b",                         62,  5376,  32, 16, 128, 21504, 262208, 131072, true, 1024},
};
constexpr Row kPhi3[] = {
    {"microsoft/Phi-3-mini-4k",                    32,  3072,  32, 32,  96,  8192,  32064,   4096, false, 2047},
    {"microsoft/Phi-3-medium-4k",                  40,  5120,  40, 10, 128, 17920,  32064,   4096, false, 2047},
    {"microsoft/Phi-3.5-mini",                     32,  3072,  32, 32,  96,  8192,  32064, 131072, false, 262144},
    {"microsoft/phi-4",                            40,  5120,  40, 10, 128, 17920, 100352,  16384, false},
    {"microsoft/Phi-4-mini",                       32,  3072,  24,  8, 128,  8192, 200064, 131072, true, 262144},
};
constexpr Row kMixtral[] = {
    {"mistralai/Mixtral-8x7B-v0.1",                32,  4096,  32,  8, 128, 14336,  32000,  32768, false, 0, 8, 2},
    {"mistralai/Mixtral-8x22B-v0.1",               56,  6144,  48,  8, 128, 16384,  32000,  65536, false, 0, 8, 2},
};
constexpr Row kQwen3Moe[] = {
    {"Qwen/Qwen3-30B-A3B",                         48,  2048,  32,  4, 128,   768, 151936,  40960, false, 0, 128, 8},
    {"Qwen/Qwen3-235B-A22B",                       94,  4096,  64,  4, 128,  1536, 151936,  40960, false, 0, 128, 8},
};
constexpr Row kGpt2[] = {
    {"openai-community/gpt2",                      12,   768,  12, 12,  64,  3072,  50257,   1024, true},
    {"openai-community/gpt2-medium",               24,  1024,  16, 16,  64,  4096,  50257,   1024, true},
    {"openai-community/gpt2-large",                36,  1280,  20, 20,  64,  5120,  50257,   1024, true},
    {"openai-community/gpt2-xl",                   48,  1600,  25, 25,  64,  6400,  50257,   1024, true},
    {"distilbert/distilgpt2",                       6,   768,  12, 12,  64,  3072,  50257,   1024, true},
};
constexpr Row kBert[] = {
    {"google-bert/bert-base-uncased",              12,   768,  12, 12,  64,  3072,  30522,    512, true},
    {"google-bert/bert-base-cased",                12,   768,  12, 12,  64,  3072,  28996,    512, true},
    {"google-bert/bert-large-uncased",             24,  1024,  16, 16,  64,  4096,  30522,    512, true},
    {"google-bert/bert-large-cased",               24,  1024,  16, 16,  64,  4096,  28996,    512, true},
};
constexpr Row kVit[] = {  // 1,000 labels; positions: patches of 16 or 14 pixels, and the class
    {"google/vit-base-patch16-224",                12,   768,  12, 12,  64,  3072,      0,    197, false, 16},
    {"google/vit-large-patch16-224",               24,  1024,  16, 16,  64,  4096,      0,    197, false, 16},
    {"google/vit-base-patch16-384",                12,   768,  12, 12,  64,  3072,      0,    577, false, 16},
};
// clang-format on

HfShape shape_of(HfFamily family, const Row& row) {
  HfShape s{.name = row.name,
            .family = family,
            .layers = row.layers,
            .width = row.width,
            .heads = row.heads,
            .kv_heads = row.kv_heads,
            .head_dim = row.head_dim,
            .mlp = row.mlp,
            .vocabulary = row.vocabulary,
            .experts = row.experts,
            .active = row.active,
            .positions = row.positions,
            .tied = row.tied,
            .window = row.window};
  s.qkv_bias = family == HfFamily::qwen2;
  if (s.gemma()) s.activation = HfActivation::gelu;
  if (s.gemma()) s.full_every = family == HfFamily::gemma2 ? 2 : 6;
  s.scores_capped = s.logits_capped = family == HfFamily::gemma2;
  if (s.name == "microsoft/Phi-4-mini") s.rotary_dim = 96;
  if (s.gated()) return s;
  s.activation = family == HfFamily::gpt2 ? HfActivation::gelu_new : HfActivation::gelu;
  s.qkv_bias = s.output_bias = s.mlp_bias = true;
  if (family == HfFamily::bert) s.types = 2;
  if (family != HfFamily::vit) s.embedding_dropout = s.attention_dropout = s.hidden_dropout = 0.1;
  if (family == HfFamily::vit) {
    s.patch = row.window;
    s.window = 0;
    s.channels = 3;
    s.labels = 1000;
  }
  return s;
}

// Letters and digits of what stands after the last slash, in lower case, without endings that change no shape.
std::string key_of(std::string_view typed) {
  std::string name = lower_case(typed.substr(typed.rfind('/') + 1));
  std::erase_if(name, [](char c) { return c == '-' || c == '_' || c == '.' || c == ' '; });
  static constexpr const char* kEndings[] = {"instruct", "chat", "hf",  "it",   "pt",  "base",
                                             "uncased",  "v01",  "v10", "2407", "2501"};
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (const std::string_view ending : kEndings) {
      if (!name.ends_with(ending) || name.size() <= ending.size()) continue;
      name.resize(name.size() - ending.size());
      shorter = true;
    }
  }
  // torchvision's names of the same shapes.
  if (name == "vitb16") return "vitbasepatch16224";
  if (name == "vitl16") return "vitlargepatch16224";
  return name.starts_with("metallama") ? name.substr(4) : name;
}

}  // namespace

const std::vector<HfShape>& hf_models() {
  static const std::vector<HfShape> all = [] {
    std::vector<HfShape> list;
    const auto add = [&](HfFamily family, const auto& rows) {
      for (const Row& row : rows) list.push_back(shape_of(family, row));
    };
    add(HfFamily::llama, kLlama);
    add(HfFamily::mistral, kMistral);
    add(HfFamily::qwen2, kQwen2);
    add(HfFamily::qwen3, kQwen3);
    add(HfFamily::gemma2, kGemma2);
    add(HfFamily::gemma3, kGemma3);
    add(HfFamily::phi3, kPhi3);
    add(HfFamily::mixtral, kMixtral);
    add(HfFamily::qwen3_moe, kQwen3Moe);
    add(HfFamily::gpt2, kGpt2);
    add(HfFamily::bert, kBert);
    add(HfFamily::vit, kVit);
    return list;
  }();
  return all;
}

HfShape hf_model(std::string_view typed) {
  constexpr std::size_t kMostTyped = 96;  // the longest name has half of that
  if (typed.empty() || typed.size() > kMostTyped) throw std::invalid_argument("a model's name has 1 to 96 characters");
  // key_of() drops what stands before a slash, and a control character there would go on into a command to be pasted.
  const bool shown = std::all_of(typed.begin(), typed.end(), [](char c) { return c >= ' ' && c <= '~'; });
  const std::string key = key_of(typed);
  std::vector<std::vector<std::string>> known;
  for (const HfShape& shape : hf_models()) {
    known.push_back({key_of(shape.name)});
    if (shown && key == known.back().front()) return shape;
  }
  std::string message = "model '" + std::string(typed) + "' is unknown; the nearest: ";
  const char* between = "";
  for (const std::size_t i : nearest_names(key, known, 4)) {
    message += between + hf_models()[i].name;
    between = ", ";
  }
  throw std::invalid_argument(message);
}

}  // namespace oomlab::nn
