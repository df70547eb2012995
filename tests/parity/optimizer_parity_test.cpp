// Moments in 8 bits against bitsandbytes', and Adafactor against PyTorch's: the fixture beside this file.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "device.h"
#include "nn/optimizer/blockwise_codes.h"
#include "nn/optimizer/dynamic_code.h"
#include "nn/optimizer/optimizer.h"
#include "read_json.h"

namespace oomlab::nn {
namespace {

using test::Device;

const nlohmann::json& fixture() {
  static const nlohmann::json all = [] {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/optimizers.json");
    return test::read_json(file);
  }();
  return all;
}
std::vector<float> floats(const nlohmann::json& bits) {
  std::vector<float> values;
  for (const std::int32_t b : bits) values.push_back(std::bit_cast<float>(b));
  return values;
}

TEST(Blockwise, HasTheCodesOfBitsandbytes) {
  for (const auto& [name, code] : {std::pair("signed", &kSignedCode), std::pair("unsigned", &kUnsignedCode)}) {
    const std::vector<float> values = floats(fixture()["codes"][name]);
    ASSERT_EQ(values.size(), 256u);
    for (std::size_t q = 0; q < 256; ++q) EXPECT_EQ(code->value[q], values[q]) << name << " " << q;
  }
}

TEST(Blockwise, RoundsAsBitsandbytes) {
  Device device;
  std::size_t blocks = 0;
  for (const nlohmann::json& of : fixture()["blocks"]) {
    SCOPED_TRACE(of["kind"].get<std::string>());
    const std::vector<float> x = floats(of["x"]), absmax = floats(of["absmax"]), back = floats(of["back"]);
    const bool with_sign = of["signed"];
    auto on_device = device.upload(x);
    auto codes = device.context.buffer<std::uint8_t>(x.size(), Category::data, "codes");
    auto scales = device.context.buffer<float>(absmax.size(), Category::data, "absmax");
    encode_blocks(device.context, on_device.data(), x.size(), with_sign, codes.data(), scales.data());
    decode_blocks(device.context, codes.data(), scales.data(), x.size(), with_sign, on_device.data());
    const auto q = device.download(codes);
    EXPECT_EQ(std::vector<int>(q.begin(), q.end()), of["codes"].get<std::vector<int>>());
    EXPECT_EQ(device.download(scales), absmax);
    EXPECT_EQ(device.download(on_device), back);
    blocks += absmax.size();
  }
  EXPECT_GE(blocks, 19u);
}

TEST(Adafactor, IsPyTorchs) {
  for (const nlohmann::json& of : fixture()["adafactor"]) {
    const std::vector<std::size_t> shape = of["shape"];
    const std::size_t rows = shape.size() == 1 ? 1 : shape[0];
    Device device;
    auto w = device.upload(floats(of["start"]));
    OptimizerSettings settings;
    settings.adafactor.lr = of["lr"], settings.adafactor.weight_decay = of["weight_decay"];
    Optimizer<float> optimizer(device.context, {{"w", "layer 1", rows, shape.back()}}, {w.data()},
                               {UpdateRule::adafactor}, settings);
    for (std::size_t step = 0; step < of["gradients"].size(); ++step) {
      auto g = device.upload(floats(of["gradients"][step]));
      const Optimizer<float>::Update update{0, g.data()};
      optimizer.update(device.context, {&update, 1});
      optimizer.end_step();
      const std::vector<float> ours = device.download(w), theirs = floats(of["weights"][step]);
      for (std::size_t i = 0; i < ours.size(); ++i)
        EXPECT_NEAR(ours[i], theirs[i], 2e-6f * std::fabs(theirs[i]) + 2e-7f) << rows << " rows, step " << step;
    }
  }
}

}  // namespace
}  // namespace oomlab::nn
