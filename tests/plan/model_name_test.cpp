#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plan/model/mlp.h"
#include "plan/model/network.h"
#include "plan/model/resnet.h"
#include "plan/model/transformer.h"

namespace oomlab::nn {
namespace {

std::string refusal(const std::string& name) {
  try {
    parse_model(name);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModelName, Known) {
  const MlpSpec mlp = parse_model("mlp");
  EXPECT_EQ(mlp.name, "mlp");
  EXPECT_EQ(mlp.widths, (std::vector<std::uint64_t>{512, 1024, 2048, 4096, 8192, 10}));
  EXPECT_EQ(mlp.activation, Activation::relu);
  EXPECT_EQ(mlp.layers(), 5u);
  EXPECT_EQ(mlp.parameters(),
            512u * 1024 + 1024 + 1024 * 2048 + 2048 + 2048 * 4096 + 4096 + 4096 * 8192 + 8192 + 8192 * 10 + 10);
  EXPECT_EQ(parse_model("mlp-small").widths, (std::vector<std::uint64_t>{64, 128, 64, 10}));
  EXPECT_EQ(parse_model("mlp-weights").widths, (std::vector<std::uint64_t>{512, 2048, 2048, 10}));
  EXPECT_EQ(parse_model("mlp-activations").widths, (std::vector<std::uint64_t>{8192, 8, 8192, 8, 8192, 8, 8192, 10}));
  EXPECT_EQ(parse_model("mlp:512-1024-10").widths, (std::vector<std::uint64_t>{512, 1024, 10}));
  EXPECT_EQ(parse_model("mlp:512-64x3-10").widths, (std::vector<std::uint64_t>{512, 64, 64, 64, 10}));
  EXPECT_EQ(parse_model("mlp:1-1").parameters(), 2u);
}

// In capitals or not: what is kept is the name as it is written here.
TEST(ModelName, InCapitals) {
  EXPECT_EQ(parse_model("MLP-Small").name, "mlp-small");
  EXPECT_EQ(parse_model("MLP:64-128X3-10").widths, parse_model("mlp:64-128x3-10").widths);
  for (const auto& [typed, name] : {std::pair("GPT2", "gpt2"),
                                    {"LLAMA-3.1-8B", "llama-3.1-8b"},
                                    {"BERT-Large", "bert-large"},
                                    {"Qwen2.5-7B", "qwen2.5-7b"},
                                    {"GPT:2-2-32", "gpt:2-2-32"}})
    EXPECT_EQ(parse_transformer(typed).name, name);
  EXPECT_EQ(parse_resnet("ResNet50").name, "resnet50");
  EXPECT_EQ(parse_network("MobileNet-V3-Large").name, "mobilenet-v3-large");
  EXPECT_EQ(parse_network("ResNet:2-4").name, parse_network("resnet:2-4").name);
}

TEST(ModelName, AlmostRightIsAnsweredWithTheNearest) {
  const auto said = [](auto parse, const char* name) -> std::string {
    try {
      (void)parse(name);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(said(parse_model, "mlp-smal").substr(0, 56), "model 'mlp-smal' is unknown; nearest: mlp-small; known: ");
  for (const auto& [typed, nearest] : {std::pair("gpt-2", "nearest: gpt2; "),
                                       {"bert_large", "nearest: bert-large; "},
                                       {"llama-3.1-7b", "nearest: llama-3.1-8b, llama-3.1-70b, llama-3.2-1b; "}})
    EXPECT_NE(said(parse_transformer, typed).find(nearest), std::string::npos) << said(parse_transformer, typed);
  EXPECT_NE(said(parse_resnet, "resnet-50").find("nearest: resnet50"), std::string::npos);
  EXPECT_NE(said(parse_network, "mobilnet-v1").find("nearest: mobilenet-v1; "), std::string::npos);
  EXPECT_EQ(said(parse_transformer, "mamba-130m").find("nearest"), std::string::npos);
}

TEST(ModelName, Refused) {
  const std::string unknown = "is unknown; known: mlp, mlp-small, mlp-weights, mlp-activations, mlp:IN-...-CLASSES";
  EXPECT_EQ(refusal("nosuch"), "model \'nosuch\' " + unknown);
  EXPECT_EQ(refusal(""), "model \'\' " + unknown);
  EXPECT_EQ(refusal("mlp-big"), "model \'mlp-big\' " + unknown);
  const std::string list = "is not a list of widths; write mlp:IN-...-CLASSES, for example mlp:64-128x3-10";
  for (const std::string name : {"mlp:", "mlp:-", "mlp:64-", "mlp:-64", "mlp:64--10", "mlp:64-x-10", "mlp:64 -10",
                                 "mlp:6.4-10", "mlp:+64-10", "mlp:64x-10", "mlp:64x2x2-10", "mlp:x2-10"})
    EXPECT_EQ(refusal(name), "model '" + name + "' " + list);
  EXPECT_EQ(refusal("mlp:64"), "model 'mlp:64' has one width; at least two are needed: IN-CLASSES");
  EXPECT_EQ(refusal("mlp:64-0-10"), "model 'mlp:64-0-10' has a width of zero; every width must be at least 1");
  EXPECT_EQ(
      refusal("mlp:99999999999999999999-10"),
      "model 'mlp:99999999999999999999-10' has a width, or a number of times, out of range: 99999999999999999999");
  for (const std::string word : {"64x0", "64x100001", "64x99999999999999999999"})
    EXPECT_EQ(refusal("mlp:" + word + "-10"),
              "model 'mlp:" + word + "-10' has a width, or a number of times, out of range: " + word);
  const std::string huge = "mlp:4294967296-4294967296";
  EXPECT_EQ(refusal(huge), "model '" + huge + "' has more parameters than 64 bits of bytes can hold");
  EXPECT_EQ(refusal("mlp:2147483648-4294967296"),
            "model 'mlp:2147483648-4294967296' has more parameters than 64 bits of bytes can hold");
}

}  // namespace
}  // namespace oomlab::nn
