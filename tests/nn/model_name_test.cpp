#include <gtest/gtest.h>

#include "nn/mlp.h"

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
  EXPECT_EQ(mlp.widths, (std::vector<std::size_t>{512, 1024, 2048, 4096, 8192, 10}));
  EXPECT_EQ(mlp.activation, Activation::relu);
  EXPECT_EQ(mlp.layers(), 5u);
  EXPECT_EQ(mlp.parameters(),
            512u * 1024 + 1024 + 1024 * 2048 + 2048 + 2048 * 4096 + 4096 + 4096 * 8192 + 8192 + 8192 * 10 + 10);
  EXPECT_EQ(parse_model("mlp-small").widths, (std::vector<std::size_t>{64, 128, 64, 10}));
  EXPECT_EQ(parse_model("mlp-weights").widths, (std::vector<std::size_t>{512, 2048, 2048, 10}));
  EXPECT_EQ(parse_model("mlp-activations").widths, (std::vector<std::size_t>{8192, 8, 8192, 8, 8192, 8, 8192, 10}));
  EXPECT_EQ(parse_model("mlp:512-1024-10").widths, (std::vector<std::size_t>{512, 1024, 10}));
  EXPECT_EQ(parse_model("mlp:512-64x3-10").widths, (std::vector<std::size_t>{512, 64, 64, 64, 10}));
  EXPECT_EQ(parse_model("mlp:1-1").parameters(), 2u);
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
