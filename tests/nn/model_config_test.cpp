// config.json: what published models say, what is left out, and what is refused.

#include "nn/models/model_config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "folder.h"
#include "memory/files.h"
#include "model_configs.h"
#include "plan/limits.h"

namespace oomlab::test {
namespace {

using namespace nn;

TransformerSpec parsed(const std::string& json) { return parse_model_config(json, "config.json"); }

// A small llama with some lines more, or other ones: {"key", "value"}; an empty value leaves the key out.
std::string config_with(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::pair<std::string, std::string>> lines = {
      {"model_type", "\"llama\""},       {"hidden_size", "64"},        {"intermediate_size", "172"},
      {"num_hidden_layers", "3"},        {"num_attention_heads", "4"}, {"vocab_size", "256"},
      {"max_position_embeddings", "512"}};
  for (const auto& change : changes) {
    std::erase_if(lines, [&](const auto& line) { return line.first == change.first; });
    if (!change.second.empty()) lines.push_back(change);
  }
  std::string json;
  for (const auto& [key, value] : lines) json += (json.empty() ? "{\"" : ", \"") + key + "\": " + value;
  return json + "}";
}

std::string refusal_of(const std::string& json) {
  try {
    (void)parsed(json);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}
std::string refusal_of(const std::string& key, const std::string& value) {
  return refusal_of(config_with({{key, value}}));
}

void expect_same_shape(const TransformerSpec& found, const TransformerSpec& expected) {
  EXPECT_EQ(found.style, expected.style) << expected.name;
  EXPECT_EQ(found.layers, expected.layers) << expected.name;
  EXPECT_EQ(found.heads, expected.heads) << expected.name;
  EXPECT_EQ(found.keys(), expected.keys()) << expected.name;
  EXPECT_EQ(found.width, expected.width) << expected.name;
  EXPECT_EQ(found.hidden(), expected.hidden()) << expected.name;
  EXPECT_EQ(found.vocabulary, expected.vocabulary) << expected.name;
  EXPECT_EQ(found.positions, expected.positions) << expected.name;
  EXPECT_EQ(found.tied, expected.tied) << expected.name;
  EXPECT_EQ(found.qkv_bias, expected.qkv_bias) << expected.name;
  EXPECT_EQ(found.epsilon, expected.epsilon) << expected.name;
  EXPECT_EQ(found.rotary, expected.rotary) << expected.name;
}

TEST(ModelConfig, PublishedModels) {
  using Scaling = Rotary::Scaling;
  const TransformerSpec llama = parsed(kLlama31_8B);
  EXPECT_EQ(llama.name, "config.json");
  EXPECT_TRUE(llama.llama());
  EXPECT_EQ(llama.layers, 32u);
  EXPECT_EQ(llama.heads, 32u);
  EXPECT_EQ(llama.kv_heads, 8u);
  EXPECT_EQ(llama.width, 4096u);
  EXPECT_EQ(llama.mlp, 14336u);
  EXPECT_EQ(llama.vocabulary, 128256u);
  EXPECT_EQ(llama.positions, 131072u);
  EXPECT_FALSE(llama.tied);
  EXPECT_FALSE(llama.qkv_bias);
  EXPECT_EQ(llama.epsilon, 1e-5f);
  EXPECT_EQ(llama.rotary, (Rotary{500000, Scaling::llama3, 8, 1, 4, 8192}));

  const TransformerSpec small = parsed(kLlama32_1B);
  EXPECT_EQ(small.depth(), 64u);
  EXPECT_TRUE(small.tied);
  EXPECT_EQ(small.rotary.factor, 32);

  const TransformerSpec qwen = parsed(kQwen25_7B);
  EXPECT_TRUE(qwen.llama());
  EXPECT_TRUE(qwen.qkv_bias);
  EXPECT_EQ(qwen.positions, 131072u);
  EXPECT_EQ(qwen.epsilon, 1e-6f);
  EXPECT_EQ(qwen.rotary, (Rotary{.theta = 1e6}));

  const TransformerSpec mistral = parsed(kMistral7B);
  EXPECT_FALSE(mistral.qkv_bias);
  EXPECT_EQ(mistral.positions, 4096u);
}

// The same shapes under their names on the command line.
TEST(ModelConfig, PublishedModelsByName) {
  const std::pair<const char*, const char*> models[] = {{"llama-3.1-8b", kLlama31_8B},
                                                        {"llama-3.2-1b", kLlama32_1B},
                                                        {"qwen2.5-7b", kQwen25_7B},
                                                        {"mistral-7b", kMistral7B}};
  for (const auto& [name, config] : models) expect_same_shape(parsed(config), parse_transformer(name));
}

TEST(ModelConfig, PublishedParameterCounts) {
  EXPECT_EQ(parsed(kLlama31_8B).parameters(), 8'030'261'248u);
  EXPECT_EQ(parsed(kLlama32_1B).parameters(), 1'235'814'400u);
  EXPECT_EQ(parsed(kQwen25_7B).parameters(), 7'615'616'512u);
  EXPECT_EQ(parsed(kMistral7B).parameters(), 7'241'732'096u);
}

TEST(ModelConfig, WhatMayBeLeftOut) {
  const TransformerSpec spec = parsed(config_with({}));
  EXPECT_EQ(spec.keys(), 4u);
  EXPECT_FALSE(spec.tied);
  EXPECT_EQ(spec.epsilon, 1e-6f);
  EXPECT_EQ(spec.rotary, Rotary{});
  for (const char* key : {"num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling",
                          "rope_parameters", "hidden_act", "attention_bias", "mlp_bias", "tie_word_embeddings"})
    EXPECT_EQ(refusal_of(key, "null"), "accepted") << key;
  EXPECT_EQ(refusal_of("head_dim", "16"), "accepted");
  EXPECT_EQ(refusal_of("anything", R"({"else": [1, {"a": null}], "rope_theta": 3})"), "accepted");
  EXPECT_EQ(refusal_of("rope_scaling.rope_type", "\"yarn\""), "accepted");
}

TEST(ModelConfig, Windows) {
  const auto positions = [](const std::string& type, const std::string& used, const std::string& window) {
    return parsed(config_with({{"model_type", type}, {"use_sliding_window", used}, {"sliding_window", window}}))
        .positions;
  };
  EXPECT_EQ(positions("\"mistral\"", "", "128"), 128u);
  EXPECT_EQ(positions("\"mistral\"", "", "1024"), 512u);
  EXPECT_EQ(positions("\"mistral\"", "", "null"), 512u);
  EXPECT_EQ(positions("\"qwen2\"", "true", "128"), 128u);
  EXPECT_EQ(positions("\"qwen2\"", "true", "null"), 512u);
  EXPECT_EQ(positions("\"qwen2\"", "false", "128"), 512u);
  EXPECT_EQ(positions("\"qwen2\"", "", "128"), 512u);
  EXPECT_EQ(positions("\"llama\"", "", "128"), 512u);
  EXPECT_EQ(parsed(config_with({{"model_type", "\"mistral\""}, {"max_position_embeddings", "32768"}})).positions, 4096u)
      << "transformers' own default";
  EXPECT_EQ(refusal_of(config_with({{"model_type", "\"mistral\""}, {"sliding_window", "0"}})),
            "config.json: sliding_window must be a whole number from 1 to 2147483647");
  EXPECT_EQ(refusal_of(config_with({{"model_type", "\"qwen2\""}, {"use_sliding_window", "1"}})),
            "config.json: use_sliding_window must be true or false");
}

TEST(ModelConfig, RotaryScalingInAllItsPlaces) {
  using Scaling = Rotary::Scaling;
  const auto rotary = [](const std::string& key, const std::string& value) {
    return parsed(config_with({{key, value}, {"rope_theta", "20000"}})).rotary;
  };
  EXPECT_EQ(rotary("rope_scaling", R"({"type": "linear", "factor": 2})"), (Rotary{20000, Scaling::linear, 2}));
  EXPECT_EQ(rotary("rope_scaling", R"({"rope_type": "linear", "type": "yarn", "factor": 2})"),
            (Rotary{20000, Scaling::linear, 2}));
  EXPECT_EQ(rotary("rope_scaling", R"({"rope_type": "default"})"), Rotary{20000});
  EXPECT_EQ(rotary("rope_parameters", R"({"rope_type": "default", "rope_theta": 1e6})"), Rotary{1e6});
  EXPECT_EQ(rotary("rope_parameters", R"({"rope_theta": 1000000})"), Rotary{1e6});
  EXPECT_EQ(rotary("rope_parameters", R"({"rope_type": "linear", "factor": 4.0})"),
            (Rotary{20000, Scaling::linear, 4}));
  EXPECT_EQ(
      rotary("rope_parameters",
             R"({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8, "low_freq_factor": 2, "high_freq_factor": 3,
                      "original_max_position_embeddings": 99})"),
      (Rotary{500000, Scaling::llama3, 8, 2, 3, 99}));
}

TEST(ModelConfig, RefusedRotary) {
  const auto scaling = [](const std::string& value) { return refusal_of("rope_scaling", value); };
  const std::string known = " is unknown; known: default, linear, llama3";
  EXPECT_EQ(scaling(R"({"rope_type": "yarn"})"), "config.json: rope_scaling.rope_type 'yarn'" + known);
  for (const std::string type : {"dynamic", "longrope", "su"})
    EXPECT_EQ(scaling(R"({"type": ")" + type + "\"}"), "config.json: rope_scaling.type '" + type + "'" + known);
  EXPECT_EQ(refusal_of("rope_parameters", R"({"rope_type": "yarn"})"),
            "config.json: rope_parameters.rope_type 'yarn'" + known);
  EXPECT_EQ(scaling(R"({"rope_type": 3})"),
            "config.json: rope_scaling.rope_type must be one of: default, linear, llama3");
  EXPECT_EQ(scaling("{}"), "config.json: rope_scaling.rope_type is missing");
  EXPECT_EQ(scaling("2"), "config.json: rope_scaling must be an object");
  EXPECT_EQ(scaling(R"({"type": "linear"})"), "config.json: rope_scaling.factor is missing");
  EXPECT_EQ(scaling(R"({"type": "linear", "factor": 0.5})"),
            "config.json: rope_scaling.factor must be a number from 1 to 1000000");
  const std::string llama3 = R"({"type": "llama3", "factor": 8, "low_freq_factor": )";
  EXPECT_EQ(scaling(llama3 + "0}"), "config.json: rope_scaling.low_freq_factor must be a number from 0.001 to 1000000");
  EXPECT_EQ(scaling(llama3 + R"(4, "high_freq_factor": 4})"),
            "config.json: rope_scaling.high_freq_factor must be above low_freq_factor");
  EXPECT_EQ(scaling(llama3 + R"(1, "high_freq_factor": 4})"),
            "config.json: rope_scaling.original_max_position_embeddings is missing");
  EXPECT_EQ(refusal_of(config_with({{"rope_scaling", R"({"type": "default"})"}, {"rope_parameters", "{}"}})),
            "config.json: rope_scaling and rope_parameters are both given");
  EXPECT_EQ(refusal_of("rope_theta", "0.5"), "config.json: rope_theta must be a number from 1 to 1000000000000");
  EXPECT_EQ(refusal_of("rope_theta", "\"1e4\""), "config.json: rope_theta must be a number from 1 to 1000000000000");
  const std::string turned = " must be 1: every value of a head is turned";
  EXPECT_EQ(refusal_of("partial_rotary_factor", "0.5"), "config.json: partial_rotary_factor" + turned);
  EXPECT_EQ(refusal_of("rope_parameters", R"({"partial_rotary_factor": 0.5})"),
            "config.json: rope_parameters.partial_rotary_factor" + turned);
}

TEST(ModelConfig, RefusedNumbers) {
  for (const std::string key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                "vocab_size", "max_position_embeddings"}) {
    const std::string most = key == "num_hidden_layers" ? std::to_string(kMostLayers) : "2147483647";
    EXPECT_EQ(refusal_of(key, ""), "config.json: " + key + " is missing");
    EXPECT_EQ(refusal_of(key, "null"), "config.json: " + key + " is missing");
    for (const char* value : {"0", "-1", "1.5", "4.0", "1e3", "\"4\"", "true", "[4]", "{}", "2147483648",
                              "18446744073709551615", "18446744073709551616", "99999999999999999999999"})
      EXPECT_EQ(refusal_of(key, value), "config.json: " + key + " must be a whole number from 1 to " + most) << value;
  }
  EXPECT_EQ(refusal_of("num_key_value_heads", "0"),
            "config.json: num_key_value_heads must be a whole number from 1 to 2147483647");
  EXPECT_EQ(refusal_of("num_key_value_heads", "3"),
            "config.json: num_key_value_heads 3 does not divide num_attention_heads 4");
  EXPECT_EQ(refusal_of("num_key_value_heads", "8"),
            "config.json: num_key_value_heads 8 does not divide num_attention_heads 4");
  EXPECT_EQ(refusal_of("num_attention_heads", "5"),
            "config.json: num_attention_heads 5 does not divide hidden_size 64");
  EXPECT_EQ(refusal_of("head_dim", "32"), "config.json: head_dim must be hidden_size / num_attention_heads, 16");
  const std::string even = " values; rotary positions need an even number, at most 256";
  EXPECT_EQ(refusal_of("num_attention_heads", "64"), "config.json: num_attention_heads makes heads of 1" + even);
  EXPECT_EQ(refusal_of(config_with({{"num_attention_heads", "1"}, {"hidden_size", "512"}})),
            "config.json: num_attention_heads makes heads of 512" + even);
  EXPECT_EQ(refusal_of("rms_norm_eps", "0"), "config.json: rms_norm_eps must be a number from 1e-12 to 1");
  EXPECT_EQ(refusal_of("rms_norm_eps", "2"), "config.json: rms_norm_eps must be a number from 1e-12 to 1");
  EXPECT_EQ(refusal_of(config_with({{"hidden_size", "2147483640"},
                                    {"intermediate_size", "2147483647"},
                                    {"num_attention_heads", "10737418"},
                                    {"num_hidden_layers", "256"}})),
            "config.json: num_attention_heads 10737418 does not divide hidden_size 2147483640");
  EXPECT_EQ(refusal_of(config_with({{"hidden_size", "2147483520"},
                                    {"intermediate_size", "2147483647"},
                                    {"num_attention_heads", "16777215"},
                                    {"num_hidden_layers", "256"}})),
            "config.json: the model has more parameters than 64 bits of bytes can hold");
}

TEST(ModelConfig, RefusedForms) {
  EXPECT_EQ(refusal_of("model_type", ""), "config.json: model_type is missing");
  for (const std::string type : {"gpt2", "bert", "gemma", "Llama", ""})
    EXPECT_EQ(refusal_of("model_type", "\"" + type + "\""),
              "config.json: model_type '" + type + "' is unknown; known: llama, mistral, qwen2");
  EXPECT_EQ(refusal_of("model_type", "[]"), "config.json: model_type must be one of: llama, mistral, qwen2");
  EXPECT_EQ(refusal_of("hidden_act", "\"gelu\""), "config.json: hidden_act 'gelu' is unknown; known: silu");
  EXPECT_EQ(refusal_of("attention_bias", "true"),
            "config.json: attention_bias must be false: it would give the output projection a bias, too");
  EXPECT_EQ(refusal_of("attention_bias", "0"), "config.json: attention_bias must be true or false");
  EXPECT_EQ(refusal_of("mlp_bias", "true"), "config.json: mlp_bias must be false");
  EXPECT_EQ(refusal_of("tie_word_embeddings", "\"yes\""), "config.json: tie_word_embeddings must be true or false");
  EXPECT_EQ(refusal_of("model_type", "\"" + std::string(1000, 'x') + "\\n\""),
            "config.json: model_type '" + std::string(80, 'x') + "...' is unknown; known: llama, mistral, qwen2");
  EXPECT_EQ(refusal_of("model_type", "\"a\\nb\""),
            "config.json: model_type 'a\\x0ab' is unknown; known: llama, mistral, qwen2");
}

TEST(ModelConfig, SaysHowItsFileIsQuantised) {
  const auto stored_as = [](const std::string& value) {
    return parsed(config_with({{"quantization_config", value}})).stored_as;
  };
  EXPECT_EQ(parsed(config_with({})).stored_as, "");
  EXPECT_EQ(stored_as("null"), "");
  EXPECT_EQ(stored_as(R"({"quant_method": "awq", "bits": 4, "group_size": 128})"), "'awq', 4 bits");
  EXPECT_EQ(stored_as(R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false})"),
            "'bitsandbytes', 4 bits");
  EXPECT_EQ(stored_as(R"({"load_in_8bit": true})"), "without a method, 8 bits");
  EXPECT_EQ(stored_as(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"), "'fp8'");
  EXPECT_EQ(stored_as("{}"), "without a method");
  EXPECT_EQ(stored_as(R"({"quant_method": "a\u001b]0;b", "bits": "four"})"), "'a\\x1b]0;b'");
  EXPECT_EQ(refusal_of("quantization_config", "4"), "config.json: quantization_config must be an object");
  expect_same_shape(parsed(config_with({{"quantization_config", R"({"quant_method": "gptq", "bits": 4})"}})),
                    parsed(config_with({})));
}

TEST(ModelConfig, RefusedTexts) {
  EXPECT_EQ(refusal_of(""), "config.json: is not JSON at byte 1");
  EXPECT_EQ(refusal_of("{\"a\": 1,}"), "config.json: is not JSON at byte 9");
  EXPECT_EQ(refusal_of("{} {}"), "config.json: is not JSON at byte 4");
  EXPECT_EQ(refusal_of(std::string("{}\0{", 4)), "config.json: is not JSON at byte 3");
  EXPECT_EQ(refusal_of("{\"a\": 1e999}"), "config.json: is not JSON at byte 11");
  EXPECT_EQ(refusal_of("[]"), "config.json: is no JSON object");
  EXPECT_EQ(refusal_of("3"), "config.json: is no JSON object");
  EXPECT_EQ(refusal_of("{\"a\": 1, \"\\u0061\": 2}"), "config.json: has the key 'a' twice");
  EXPECT_EQ(refusal_of("rope_scaling", R"({"type": "linear", "factor": 2, "factor": 4})"),
            "config.json: has the key 'factor' twice");
  EXPECT_EQ(refusal_of("{\"a\": " + std::string(1'000'000, '[')), "config.json: is nested deeper than 16 levels");
  std::string objects;
  for (int i = 0; i < 17; ++i) objects += "{\"a\":";
  EXPECT_EQ(refusal_of(objects + "1"), "config.json: is nested deeper than 16 levels");
}

TEST(ModelConfig, Files) {
  const Folder folder;
  const std::string path = folder.write("config.json", kLlama32_1B);
  EXPECT_EQ(read_model_config(path).name, path);
  EXPECT_EQ(read_model_config(path).width, 2048u);
  const auto refusal = [](const std::string& from) -> std::string {
    try {
      (void)read_model_config(from);
    } catch (const BadFile& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string missing = folder.path() + "/missing";
  EXPECT_EQ(refusal(missing), "'" + missing + "' cannot be read: No such file or directory");
  EXPECT_EQ(refusal(folder.path()), "'" + folder.path() + "' is a folder, not a file");
  const std::string large = folder.write("large", std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(refusal(large), "'" + large + "' has more than 1048576 bytes");
  const std::string empty = folder.write("empty", "");
  EXPECT_THROW((void)read_model_config(empty), std::invalid_argument) << "is not JSON at byte 1";
}

TEST(ModelConfig, WrittenAndRead) {
  for (const char* config : {kLlama31_8B, kLlama32_1B, kQwen25_7B, kMistral7B}) {
    TransformerSpec spec = parsed(config);
    for (const Rotary& rotary :
         {spec.rotary, Rotary{12345.678, Rotary::Scaling::linear, 1.1}, Rotary{3e7, Rotary::Scaling::none}}) {
      spec.rotary = rotary;
      expect_same_shape(parsed(model_config_of(spec)), spec);
    }
  }
  EXPECT_THROW((void)model_config_of(parse_transformer("gpt2")), std::invalid_argument);
}

}  // namespace
}  // namespace oomlab::test
