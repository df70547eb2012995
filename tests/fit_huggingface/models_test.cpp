// Models by name and by config.json: shapes, and counts that transformers' own modules gave.

#include <gtest/gtest.h>

#include <map>

#include "plan/model/huggingface_config.h"

namespace oomlab::nn {
namespace {

std::string why(const auto& run) {
  try {
    run();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

// As the hub's pages and transformers' modules count them.
TEST(HfModels, PublishedCounts) {
  const std::map<std::string, std::uint64_t> counts{{"meta-llama/Llama-2-7b-hf", 6'738'415'616},
                                                    {"meta-llama/Llama-3.1-8B", 8'030'261'248},
                                                    {"meta-llama/Llama-3.1-70B", 70'553'706'496},
                                                    {"meta-llama/Llama-3.1-405B", 405'853'388'800},
                                                    {"meta-llama/Llama-3.2-3B", 3'212'749'824},
                                                    {"mistralai/Mistral-7B-v0.3", 7'248'023'552},
                                                    {"mistralai/Mistral-Nemo-Base-2407", 12'247'782'400},
                                                    {"Qwen/Qwen2.5-0.5B", 494'032'768},
                                                    {"Qwen/Qwen2.5-7B", 7'615'616'512},
                                                    {"Qwen/Qwen2.5-72B", 72'706'203'648},
                                                    {"Qwen/Qwen3-8B", 8'190'735'360},
                                                    {"Qwen/Qwen3-32B", 32'762'123'264},
                                                    {"google/gemma-2-9b", 9'241'705'984},
                                                    {"google/gemma-3-1b", 999'885'952},
                                                    {"microsoft/Phi-3-mini-4k", 3'821'079'552},
                                                    {"microsoft/phi-4", 14'659'507'200},
                                                    {"openai-community/gpt2-xl", 1'557'611'200},
                                                    {"google-bert/bert-large-uncased", 335'174'458},
                                                    {"google/vit-base-patch16-224", 86'567'656}};
  for (const auto& [name, count] : counts) EXPECT_EQ(parameter_count(hf_model(name)), count) << name;
  EXPECT_GE(hf_models().size(), 60u);
}

TEST(HfModels, EveryNameFindsItself) {
  for (const HfShape& shape : hf_models()) EXPECT_EQ(hf_model(shape.name).name, shape.name);
}

TEST(HfModels, NamesThatPeopleType) {
  const std::map<std::string, std::string> typed{{"llama3.1-8b", "meta-llama/Llama-3.1-8B"},
                                                 {"Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"},
                                                 {"llama3-8b", "meta-llama/Meta-Llama-3-8B"},
                                                 {"vit-b-16", "google/vit-base-patch16-224"},
                                                 {"vit_l_16", "google/vit-large-patch16-224"},
                                                 {"meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-hf"},
                                                 {"QWEN3_8B", "Qwen/Qwen3-8B"},
                                                 {"google/gemma-3-4b-it", "google/gemma-3-4b"},
                                                 {"gpt2-medium", "openai-community/gpt2-medium"},
                                                 {"bert-base-uncased", "google-bert/bert-base-uncased"}};
  for (const auto& [text, name] : typed) EXPECT_EQ(hf_model(text).name, name) << text;
  const std::string message = why([] { (void)hf_model("qwen3-9b"); });
  EXPECT_NE(message.find("'qwen3-9b' is unknown; the nearest: "), std::string::npos) << message;
  EXPECT_NE(message.find("Qwen/Qwen3-8B"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_NE(why([] { (void)hf_model(std::string(1000, 'a')); }), "");
  EXPECT_NE(why([] { (void)hf_model(""); }), "");
  EXPECT_NE(why([] { (void)hf_model("openai\x03/gpt2"); }), "");
}

TEST(HfConfig, ReadsWhatFamiliesSay) {
  const HfShape qwen3 = parse_hf_config(
      R"({"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
          "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
          "max_position_embeddings": 40960, "tie_word_embeddings": false, "use_sliding_window": false,
          "sliding_window": null, "hidden_act": "silu", "attention_bias": false})",
      "config.json");
  EXPECT_EQ(parameter_count(qwen3), 8'190'735'360u);
  EXPECT_EQ(qwen3.window, 0u);
  const HfShape gemma3 = parse_hf_config(
      R"({"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": {"model_type": "gemma3_text",
          "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
          "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})",
      "config.json");
  EXPECT_EQ(parameter_count(gemma3), 3'880'263'168u);
  EXPECT_EQ(gemma3.full_every, 6u);
  // As the files of Mixtral 8x7B and Qwen3 30B A3B say it, whose pages have 46.7 and 30.5 billion parameters.
  const HfShape mixtral = parse_hf_config(
      R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
          "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
          "max_position_embeddings": 32768, "vocab_size": 32000, "sliding_window": null, "output_router_logits": false})",
      "c");
  EXPECT_EQ(parameter_count(mixtral), 46'702'792'704u);
  EXPECT_EQ(mixtral.active, 2u);
  const HfShape qwen3_moe = parse_hf_config(
      R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
          "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128,
          "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
          "max_position_embeddings": 40960, "vocab_size": 151936, "tie_word_embeddings": false})",
      "c");
  EXPECT_EQ(parameter_count(qwen3_moe), 30'532'122'624u);
  EXPECT_EQ(qwen3_moe.window, 0u);
  const HfShape gpt2 = parse_hf_config(
      R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_inner": null})",
      "c");
  EXPECT_EQ(parameter_count(gpt2), 124'439'808u);
  EXPECT_EQ(gpt2.attention_dropout, 0.1);
  const HfShape bert = parse_hf_config(R"({"model_type": "bert", "vocab_size": 30522, "hidden_dropout_prob": 0})", "c");
  EXPECT_EQ(parameter_count(bert), 109'514'298u);
  EXPECT_EQ(bert.hidden_dropout, 0);
  const HfShape vit = parse_hf_config(R"({"model_type": "vit", "id2label": {"0": "a", "1": "b", "2": "c"}})", "c");
  EXPECT_EQ(vit.labels, 3u);
  EXPECT_EQ(vit.positions, 197u);
}

TEST(HfConfig, RefusesInOneLine) {
  for (const auto& [json, said] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"model_type": "deepseek_v3"})", "'deepseek_v3' is unknown; known: llama"},
           {R"({"model_type": "mixtral"})", "num_hidden_layers is missing"},
           {R"({"model_type": "mixtral", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
                "intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 8, "num_local_experts": 2,
                "num_experts_per_tok": 3})",
            "num_experts_per_tok 3 is more than num_local_experts 2"},
           {R"({"model_type": "qwen3_moe", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1,
                "moe_intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 8, "mlp_only_layers": [0]})",
            "mlp_only_layers must be empty"},
           {R"({"model_type": "qwen3_moe", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1,
                "moe_intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 8, "decoder_sparse_step": 2})",
            "decoder_sparse_step must be 1"},
           {R"({"model_type": "gpt2"})", "n_layer is missing"},
           {R"({"model_type": "bert", "vocab_size": 1, "hidden_size": 10, "num_attention_heads": 3})",
            "does not divide"},
           {R"({"model_type": "bert", "vocab_size": 1, "hidden_act": "relu"})", "'relu' is unknown"},
           {R"({"model_type": "vit", "image_size": 8})", "must not be larger than image_size"},
           {R"({"model_type": "gpt2", "n_layer": 1000000000000, "n_head": 1, "n_embd": 1, "vocab_size": 1})",
            "n_layer"},
           {"[]", "is no JSON object"},
           {"{", "not JSON"}}) {
    const std::string message = why([&] { (void)parse_hf_config(json, "file.json"); });
    EXPECT_EQ(message.find("file.json"), 0u) << json << ": " << message;
    EXPECT_NE(message.find(said), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(HfModels, OfTheCourse) {
  for (const TransformerSpec& spec : named_transformers())
    EXPECT_EQ(parameter_count(hf_shape_of(spec)), spec.parameters()) << spec.name;
}

}  // namespace
}  // namespace oomlab::nn
