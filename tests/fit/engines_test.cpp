// GGUF kinds, llama.cpp's buffers and vLLM's shares of a card, beside what their own pages and logs say. Sources:
// docs/fit_engines.md.

#include <gtest/gtest.h>

#include <cmath>

#include "plan/engine/llama_cpp.h"
#include "plan/engine/vllm.h"
#include "plan/model/huggingface_config.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;

constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

std::uint64_t file_bytes(const char* model, const char* kind) {
  return gguf_file_bytes(nn::hf_model(model), *gguf_kind(kind));
}

// llama.cpp's tools/quantize/README.md: bits per weight of meta-llama/Llama-3.1-8B.
TEST(FitEngines, BitsPerWeightAreThoseOfThePublishedTable) {
  const double weights = double(nn::parameter_count(nn::hf_model("llama-3.1-8b")));
  for (const auto& [kind, bits] :
       {std::pair("iq1_s", 2.0042), {"iq1_m", 2.1460},   {"iq2_xxs", 2.3824}, {"iq2_xs", 2.5882}, {"iq2_s", 2.7403},
        {"iq2_m", 2.9294},          {"iq3_xxs", 3.2548}, {"iq3_xs", 3.4977},  {"iq3_s", 3.6606},  {"iq3_m", 3.7628},
        {"iq4_xs", 4.4597},         {"iq4_nl", 4.6818},  {"q2_k_s", 2.9697},  {"q2_k", 3.1593},   {"q3_k_s", 3.6429},
        {"q3_k_l", 4.2979},         {"q4_k_s", 4.6672},  {"q4_k_m", 4.8944},  {"q5_k_s", 5.5704}, {"q5_k_m", 5.7036},
        {"q6_k", 6.5633},           {"q8_0", 8.5008},    {"f16", 16.0005}})
    EXPECT_NEAR(8 * double(file_bytes("llama-3.1-8b", kind)) / weights, bits, 0.00006) << kind;
}

// "model size = 4.36 GiB": as logs print it.
TEST(FitEngines, SizesOfModelsAreThoseOfLogs) {
  EXPECT_NEAR(double(file_bytes("qwen2.5-7b", "Q4_K_M")) / kGiB, 4.36, 0.005);
  EXPECT_NEAR(double(file_bytes("llama-3.1-70b", "q4_0")) / kGiB, 37.22, 0.005);
  EXPECT_EQ(gguf_kind("q4_k_x"), nullptr);
  // Rows of 896 values are no blocks of 256: Q4_K becomes Q5_0, and the tied embedding Q8_0.
  std::uint64_t replaced = 0;
  for (const GgufTensor& tensor : gguf_tensors(nn::hf_model("qwen2.5-0.5b"), *gguf_kind("q4_k_m"))) {
    if (tensor.name == "q_proj.weight") {
      EXPECT_EQ(tensor.type, GgufType::q5_0);
    }
    if (tensor.name == "embed_tokens.weight") {
      EXPECT_EQ(tensor.type, GgufType::q8_0);
    }
    replaced += tensor.type == GgufType::q5_0;
  }
  EXPECT_GT(replaced, 24u);
  EXPECT_THROW(gguf_tensors(nn::hf_model("bert-large"), *gguf_kind("q8_0")), std::invalid_argument);
  EXPECT_THROW(gguf_bytes(GgufType::q4_k, 1, 100), std::invalid_argument);
}

LlamaCppRun run_of(const char* kind, std::uint64_t tokens, bool flash_attention = false) {
  return {.kind = gguf_kind(kind), .tokens = tokens, .flash_attention = flash_attention};
}

// "CUDA0 buffer size", "CPU buffer size", "KV buffer size", "compute buffer size", "CUDA_Host compute buffer size".
TEST(FitEngines, BuffersOfLlamaCppAreThoseOfLogs) {
  const nn::HfShape llama = nn::hf_model("llama-3.1-8b");
  const LlamaCppNeed small = llama_cpp_need(llama, run_of("q4_k_m", 512));
  EXPECT_NEAR(double(small.fullest().weights) / kMiB, 4403.49, 0.01);
  EXPECT_NEAR(double(small.host.weights) / kMiB, 281.81, 0.01);
  EXPECT_NEAR(double(small.fullest().cache) / kMiB, 64.00, 0.01);
  EXPECT_NEAR(double(small.fullest().compute) / kMiB, 258.50, 0.01);
  EXPECT_NEAR(double(small.host.compute) / kMiB, 9.01, 0.02);
  const LlamaCppNeed large = llama_cpp_need(llama, run_of("q4_0", 8192));
  EXPECT_NEAR(double(large.fullest().weights) / kMiB, 4156.00, 0.02);
  EXPECT_NEAR(double(large.fullest().cache) / kMiB, 1024.00, 0.01);
  EXPECT_NEAR(double(large.fullest().compute) / kMiB, 560.00, 0.01);
  EXPECT_NEAR(double(large.host.compute) / kMiB, 24.01, 0.02);
  const LlamaCppNeed mistral = llama_cpp_need(nn::hf_model("mistral-7b-v0.1"), run_of("q4_0", 512));
  EXPECT_NEAR(double(mistral.fullest().cache) / kMiB, 64.00, 0.01);
  EXPECT_NEAR(double(mistral.fullest().compute) / kMiB, 81.00, 0.01);
  // Two cards that work at the same time keep four copies of what goes in. The log is of a model with these widths.
  const nn::HfShape wide{.name = "wide",
                         .layers = 40,
                         .width = 8192,
                         .heads = 64,
                         .kv_heads = 64,
                         .head_dim = 128,
                         .mlp = 22528,
                         .vocabulary = 32000,
                         .positions = 8192};
  LlamaCppRun two = run_of("q4_0", 4096);
  two.cards = 2;
  EXPECT_NEAR(double(llama_cpp_need(wide, two).cards[0].compute) / kMiB, 672.01, 0.02);
}

TEST(FitEngines, LayersOnTheHostAreCountedThere) {
  const nn::HfShape llama = nn::hf_model("llama-3.1-8b");
  LlamaCppRun run = run_of("q4_k_m", 4096, true);
  const LlamaCppNeed all = llama_cpp_need(llama, run);
  EXPECT_EQ(all.fullest().layers, 33u);
  run.layers_on_cards = 9;  // eight layers, and the output
  const LlamaCppNeed some = llama_cpp_need(llama, run);
  EXPECT_EQ(some.fullest().layers, 9u);
  EXPECT_EQ(some.fullest().cache, all.fullest().cache / 4);
  EXPECT_EQ(some.fullest().cache + some.host.cache, all.fullest().cache);
  EXPECT_EQ(some.fullest().weights + some.host.weights, all.fullest().weights + all.host.weights);
  run.layers_on_cards = UINT64_MAX;
  run.cards = 3;
  const LlamaCppNeed three = llama_cpp_need(llama, run);
  std::uint64_t layers = 0, weights = 0;
  for (const LlamaCppPart& card : three.cards) layers += card.layers, weights += card.weights;
  EXPECT_EQ(layers, 33u);
  EXPECT_EQ(weights, all.fullest().weights);
  // A tied output is on the card, and the embedding on the host as well.
  const nn::HfShape tied = nn::hf_model("llama-3.2-1b");
  const LlamaCppNeed twice = llama_cpp_need(tied, run_of("q8_0", 512));
  EXPECT_EQ(twice.fullest().weights, file_bytes("llama-3.2-1b", "q8_0"));
  EXPECT_EQ(twice.host.weights, gguf_bytes(GgufType::q8_0, tied.vocabulary, tied.width));
}

TEST(FitEngines, CachesOfFewerBits) {
  const nn::HfShape llama = nn::hf_model("llama-3.1-8b");
  LlamaCppRun run = run_of("q4_k_m", 8192, true);
  const std::uint64_t wide = llama_cpp_need(llama, run).fullest().cache;
  run.cache = GgufType::q8_0;
  EXPECT_EQ(llama_cpp_need(llama, run).fullest().cache, wide / 2 / 32 * 34);
  EXPECT_GT(llama_cpp_need(llama, run).fullest().scratch, 0u);
  run.flash_attention = false;
  EXPECT_THROW(llama_cpp_need(llama, run), std::invalid_argument);
  // gemma's layers with a window keep what they see, and a pass: 1024 + 512 cells.
  const nn::HfShape gemma = nn::hf_model("gemma-3-4b");
  const std::uint64_t cache = llama_cpp_need(gemma, run_of("q4_0", 16384, true)).fullest().cache;
  const std::uint64_t cell = 2 * gemma.keys() * 2, whole = gemma.layers / 6;
  EXPECT_EQ(cache, cell * (whole * 16384 + (gemma.layers - whole) * 1536));
}

VllmRun vllm_of(std::uint64_t tokens, std::uint64_t sequences, std::uint64_t cards = 1) {
  return {.cards = cards, .batched_tokens = tokens, .sequences = sequences};
}

// "model weights take …GiB; PyTorch activation peak memory takes …GiB".
TEST(FitEngines, WeightsAndPassesOfVllmAreThoseOfLogs) {
  const struct {
    const char* model;
    std::uint64_t positions;  // of its config.json, where the log's is another than the table's
    VllmRun run;
    double weights, activations;
  } kLogs[] = {
      {"meta-llama-3-8b", 8192, vllm_of(8192, 256), 14.96, 1.26},
      {"meta-llama-3-8b", 8192, vllm_of(8192, 256, 2), 7.48, 1.26},
      {"llama-3.1-8b", 131072, vllm_of(512, 256), 14.99, 1.19},
      {"llama-3.1-8b", 131072, vllm_of(2048, 1), 14.99, 0.22},
      {"qwen2.5-1.5b", 32768, vllm_of(32768, 256), 2.89, 2.02},
      {"qwen3-8b", 40960, vllm_of(2048, 256), 15.27, 1.40},
      {"qwen3-8b", 40960, vllm_of(8192, 256, 4), 3.85, 1.45},
  };
  for (const auto& log : kLogs) {
    nn::HfShape shape = nn::hf_model(log.model);
    shape.positions = log.positions;
    const VllmNeed need = vllm_need(shape, log.run);
    EXPECT_NEAR(double(need.weights) / kGiB / log.weights, 1, 0.01) << log.model;
    EXPECT_NEAR(double(need.activations.high) / kGiB / log.activations, 1, 0.04) << log.model;
  }
}

// "# CUDA blocks: 5519", of 16 tokens in 2.36 GiB; 2356 in 4.60 GiB.
TEST(FitEngines, TokensOfVllmAreThoseOfLogs) {
  const VllmNeed qwen = vllm_need(nn::hf_model("qwen2.5-1.5b"), vllm_of(32768, 256));
  EXPECT_NEAR(double(vllm_tokens(qwen, std::uint64_t(2.36 * kGiB))), 5519 * 16, 5519 * 16 * 0.005);
  const VllmNeed llama = vllm_need(nn::hf_model("llama-3.1-8b"), vllm_of(2048, 1));
  EXPECT_EQ(llama.token, 131072u);
  EXPECT_NEAR(double(vllm_tokens(llama, std::uint64_t(4.60 * kGiB))), 37696, 100);
  EXPECT_EQ(vllm_tokens(llama, 131072 * 31), 16u);
}

TEST(FitEngines, VllmSharesLayersAmongCards) {
  const nn::HfShape llama = nn::hf_model("llama-3.1-8b");
  const VllmNeed one = vllm_need(llama, vllm_of(2048, 256)), eight = vllm_need(llama, vllm_of(2048, 256, 8));
  EXPECT_EQ(eight.token, one.token / 8);
  EXPECT_EQ(vllm_need(llama, vllm_of(2048, 256, 16)).token, one.token / 8);  // some cards have the same keys
  EXPECT_THROW(vllm_need(llama, vllm_of(2048, 256, 3)), std::invalid_argument);
  EXPECT_THROW(vllm_need(nn::hf_model("bert-large"), vllm_of(1, 1)), std::invalid_argument);
  VllmRun narrow = vllm_of(2048, 256);
  narrow.narrow_cache = true;
  EXPECT_EQ(vllm_need(llama, narrow).token, one.token / 2);
  narrow.weights = VllmWeights::eight;
  const double embeddings = 2.0 * double(llama.vocabulary) * double(llama.width) * 2;
  EXPECT_NEAR(double(vllm_need(llama, narrow).weights), (double(one.weights) - embeddings) / 2 + embeddings, 3e7);
}

TEST(FitEngines, ServersDefaultsAreOfTheCard) {
  VllmRun run;
  set_defaults(run, std::uint64_t(79) << 30, false);
  EXPECT_EQ(run.batched_tokens, 8192u);
  EXPECT_EQ(run.sequences, 1024u);
  set_defaults(run, std::uint64_t(79) << 30, true);
  EXPECT_EQ(run.batched_tokens, 2048u);
  EXPECT_EQ(run.sequences, 256u);
}

}  // namespace
