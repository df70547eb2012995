// Our operators of lighter networks against PyTorch's, in FP32: features.json, made by generate.py.

#include <gtest/gtest.h>

#include <fstream>

#include "device.h"
#include "nn/ops/activation.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/channels.h"
#include "nn/ops/matmul.h"
#include "nn/ops/pooling.h"
#include "nn/ops/upsample.h"
#include "read_json.h"

namespace oomlab::test {
namespace {

const nlohmann::json& features() {
  static const nlohmann::json all = [] {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/features.json");
    return read_json(file);
  }();
  return all;
}

struct Features : ::testing::Test {
  Device device;
  Context& context = device.context;

  DeviceBuffer<float> upload(const nlohmann::json& values) { return device.upload(values.get<std::vector<float>>()); }
  DeviceBuffer<float> garbage(const nlohmann::json& as) { return device.upload(std::vector<float>(as.size(), NAN)); }
  void expect(const DeviceBuffer<float>& found, const nlohmann::json& expected, const std::string& what) {
    expect_close(device.download(found), expected.get<std::vector<float>>(), 1e-4, what);
  }
};

TEST_F(Features, HardActivations) {
  for (const auto& c : features()["activations"]) {
    const bool swish = c["name"] == "hard swish";
    const nn::Activation activation = swish ? nn::Activation::hard_swish : nn::Activation::hard_sigmoid;
    auto z = upload(c["x"]), y = upload(c["x"]), dy = upload(c["dy"]);
    if (swish)
      nn::bias_activation_keep(context, z.data(), nullptr, y.data(), 1, z.size(), activation);
    else
      nn::bias_activation(context, y.data(), nullptr, 1, y.size(), activation);
    nn::activation_backward(context, dy.data(), swish ? z.data() : y.data(), z.size(), activation);
    expect(y, c["y"], c["name"]);
    expect(dy, c["dx"], "gradient of " + c["name"].get<std::string>());
  }
}

TEST_F(Features, NormsBeforeAHardSwish) {
  for (const auto& c : features()["norms"]) {
    const std::size_t rows = c["rows"], channels = c["channels"];
    const auto gamma = upload(c["gamma"]), beta = upload(c["beta"]);
    auto x = upload(c["x"]), dy = upload(c["dy"]), y = garbage(c["y"]), mean = garbage(c["gamma"]),
         inv_std = garbage(c["gamma"]), dgamma = garbage(c["gamma"]), dbeta = garbage(c["beta"]);
    nn::batch_norm_forward<float>(context, x.data(), gamma.data(), beta.data(), nullptr, y.data(), mean.data(),
                                  inv_std.data(), {}, rows, channels, nn::Activation::hard_swish);
    nn::norm_activation_backward(context, dy.data(), x.data(), gamma.data(), beta.data(), mean.data(), inv_std.data(),
                                 rows, channels, nn::Activation::hard_swish);
    nn::batch_norm_backward(context, x.data(), dy.data(), gamma.data(), mean.data(), inv_std.data(), dgamma.data(),
                            dbeta.data(), rows, channels);
    expect(y, c["y"], "y");
    expect(x, c["dx"], "dx");
    expect(dgamma, c["dgamma"], "dgamma");
    expect(dbeta, c["dbeta"], "dbeta");
  }
}

TEST_F(Features, Upsamplings) {
  for (const auto& c : features()["upsamplings"]) {
    const auto s = c["shape"].get<std::array<std::size_t, 5>>();
    const auto x = upload(c["x"]), dy = upload(c["dy"]);
    auto y = garbage(c["y"]), dx = garbage(c["x"]);
    nn::upsample_forward(context, x.data(), y.data(), s[0], s[1], s[2], s[3], s[4]);
    nn::upsample_backward(context, dy.data(), dx.data(), s[0], s[1], s[2], s[3], s[4]);
    expect(y, c["y"], "y of " + c["shape"].dump());
    expect(dx, c["dx"], "dx of " + c["shape"].dump());
  }
}

// Mean, linear, ReLU, linear, hard sigmoid, product; and back.
TEST_F(Features, SqueezeAndExcitation) {
  for (const auto& c : features()["excitations"]) {
    const auto [batch, pixels, channels, squeezed] = c["shape"].get<std::array<std::size_t, 4>>();
    const float share = 1.0f / static_cast<float>(pixels);
    const auto x = upload(c["x"]), w1 = upload(c["w1"]), b1 = upload(c["b1"]), w2 = upload(c["w2"]),
               b2 = upload(c["b2"]);
    auto dy = upload(c["dy"]), y = garbage(c["y"]), mean = garbage(c["factors"]), factors = garbage(c["factors"]);
    auto hidden = device.upload(std::vector<float>(batch * squeezed, NAN));
    nn::global_pool_forward(context, x.data(), mean.data(), batch, pixels, channels, share);
    nn::linear_bias_forward(context, mean.data(), w1.data(), b1.data(), hidden.data(), batch, channels, squeezed);
    nn::bias_activation(context, hidden.data(), nullptr, batch, squeezed, nn::Activation::relu);
    nn::linear_bias_forward(context, hidden.data(), w2.data(), b2.data(), factors.data(), batch, squeezed, channels);
    nn::bias_activation(context, factors.data(), nullptr, batch, channels, nn::Activation::hard_sigmoid);
    nn::scale_channels(context, x.data(), factors.data(), y.data(), batch, pixels, channels);
    expect(factors, c["factors"], "factors");
    expect(y, c["y"], "y");

    auto dfactors = garbage(c["factors"]), dmean = garbage(c["factors"]), dw1 = garbage(c["w1"]),
         db1 = garbage(c["b1"]), dw2 = garbage(c["w2"]), db2 = garbage(c["b2"]);
    auto dhidden = device.upload(std::vector<float>(batch * squeezed, NAN));
    nn::scale_channels_backward_factors(context, dy.data(), x.data(), dfactors.data(), batch, pixels, channels);
    nn::activation_backward(context, dfactors.data(), factors.data(), dfactors.size(), nn::Activation::hard_sigmoid);
    nn::linear_backward_weight(context, dfactors.data(), hidden.data(), dw2.data(), db2.data(), batch, squeezed,
                               channels);
    nn::linear_backward_input(context, dfactors.data(), w2.data(), dhidden.data(), batch, squeezed, channels);
    nn::activation_backward(context, dhidden.data(), hidden.data(), dhidden.size(), nn::Activation::relu);
    nn::linear_backward_weight(context, dhidden.data(), mean.data(), dw1.data(), db1.data(), batch, channels, squeezed);
    nn::linear_backward_input(context, dhidden.data(), w1.data(), dmean.data(), batch, channels, squeezed);
    nn::scale_channels_backward_input(context, dy.data(), factors.data(), dmean.data(), share, batch, pixels, channels);
    expect(dy, c["dx"], "dx");
    expect(dw1, c["dw1"], "dw1");
    expect(db1, c["db1"], "db1");
    expect(dw2, c["dw2"], "dw2");
    expect(db2, c["db2"], "db2");
  }
}

}  // namespace
}  // namespace oomlab::test
