// Our operators of images and a residual network against PyTorch's, in FP32: images.json, made by generate.py.

#include <gtest/gtest.h>

#include <fstream>

#include "device.h"
#include "image_reference.h"
#include "nn/models/network.h"
#include "nn/ops/activation.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/convolution.h"
#include "nn/ops/pooling.h"
#include "read_json.h"

namespace oomlab::test {
namespace {

constexpr double kImageTolerance = 1e-4;

const nlohmann::json& images() {
  static const nlohmann::json all = [] {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/images.json");
    return read_json(file);
  }();
  return all;
}
std::vector<float> floats(const nlohmann::json& values) { return values.get<std::vector<float>>(); }

struct Images : ::testing::Test {
  Device device;
  Context& context = device.context;

  DeviceBuffer<float> upload(const nlohmann::json& values) { return device.upload(floats(values)); }
  DeviceBuffer<float> garbage(const nlohmann::json& as) { return device.upload(std::vector<float>(as.size(), NAN)); }
  void expect(const DeviceBuffer<float>& found, const nlohmann::json& expected, const std::string& what) {
    expect_close(device.download(found), floats(expected), kImageTolerance, what);
  }
};

TEST_F(Images, Convolutions) {
  for (const auto& c : images()["convolutions"]) {
    const auto s = c["shape"].get<std::array<std::size_t, 9>>();
    const nn::ConvolutionShape shape = nn::convolution_shape(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]);
    const auto x = upload(c["x"]), w = upload(c["w"]), dy = upload(c["dy"]);
    auto y = garbage(c["y"]), dx = garbage(c["x"]), dw = garbage(c["w"]);
    for (const auto way : {nn::ConvolutionWay::im2col, nn::ConvolutionWay::tiled, nn::ConvolutionWay::direct}) {
      const std::string what = c["shape"].dump() + ", " + name_of(way);
      nn::convolution_forward(context, shape, way, x.data(), w.data(), y.data());
      nn::convolution_backward_input(context, shape, way, dy.data(), w.data(), dx.data());
      nn::convolution_backward_weight(context, shape, way, dy.data(), x.data(), dw.data());
      expect(y, c["y"], "y of " + what);
      expect(dx, c["dx"], "dx of " + what);
      expect(dw, c["dw"], "dw of " + what);
    }
    if (shape.groups != shape.in_channels || shape.groups != shape.out_channels) continue;
    const auto filters = device.upload(depthwise_weights(shape, floats(c["w"])));
    nn::depthwise_forward(context, shape, x.data(), filters.data(), y.data());
    nn::depthwise_backward_input(context, shape, dy.data(), filters.data(), dx.data());
    nn::depthwise_backward_weight(context, shape, dy.data(), x.data(), dw.data());
    expect(y, c["y"], "y of depthwise");
    expect(dx, c["dx"], "dx of depthwise");
    expect_close(device.download(dw), depthwise_weights(shape, floats(c["dw"])), kImageTolerance, "dw of depthwise");
  }
}

TEST_F(Images, BatchNorms) {
  for (const auto& c : images()["batch_norms"]) {
    const std::size_t rows = c["rows"], channels = c["channels"], count = rows * channels;
    const bool ends_block = !c["residual"].empty();
    const nn::Activation activation = ends_block ? nn::Activation::relu : nn::Activation::none;
    const auto first = upload(c["first"]), gamma = upload(c["gamma"]), beta = upload(c["beta"]),
               residual = upload(ends_block ? c["residual"] : c["x"]);
    auto x = upload(c["x"]), dy = upload(c["dy"]), y = garbage(c["y"]), mean = garbage(c["gamma"]),
         inv_std = garbage(c["gamma"]), dgamma = garbage(c["gamma"]), dbeta = garbage(c["beta"]);
    auto running_mean = device.upload(std::vector<float>(channels, 0)),
         running_variance = device.upload(std::vector<float>(channels, 1));
    const nn::BatchNormState running{running_mean.data(), running_variance.data()};
    const float* const added = ends_block ? residual.data() : nullptr;
    for (const float* const in : {first.data(), std::as_const(x).data()})
      nn::batch_norm_forward(context, in, gamma.data(), beta.data(), added, y.data(), mean.data(), inv_std.data(),
                             running, rows, channels, activation);
    expect(y, c["y"], "y");
    expect(running_mean, c["running_mean"], "running mean");
    expect(running_variance, c["running_variance"], "running variance");
    if (ends_block) {
      nn::activation_backward(context, dy.data(), y.data(), count, nn::Activation::relu);
      expect(dy, c["dresidual"], "gradient of the residual");
    }
    nn::batch_norm_backward(context, x.data(), dy.data(), gamma.data(), mean.data(), inv_std.data(), dgamma.data(),
                            dbeta.data(), rows, channels);
    expect(x, c["dx"], "dx");
    expect(dgamma, c["dgamma"], "dgamma");
    expect(dbeta, c["dbeta"], "dbeta");
    nn::batch_norm_inference(context, first.data(), gamma.data(), beta.data(), added, y.data(), running, rows, channels,
                             activation);
    expect(y, c["inference"], "inference");
  }
}

TEST_F(Images, Pools) {
  for (const auto& c : images()["pools"]) {
    const auto s = c["shape"].get<std::array<std::size_t, 7>>();
    const nn::ConvolutionShape shape = nn::convolution_shape(s[0], s[1], s[2], s[3], s[3], s[4], s[5], s[6]);
    const auto x = upload(c["x"]);
    auto y = garbage(c["max"]["y"]), dx = garbage(c["x"]);
    auto which = device.upload(std::vector<unsigned char>(y.size(), 255));
    nn::max_pool_forward(context, shape, x.data(), y.data(), which.data());
    nn::max_pool_backward(context, shape, upload(c["max"]["dy"]).data(), which.data(), dx.data());
    expect(y, c["max"]["y"], "maximum");
    expect(dx, c["max"]["dx"], "dx of the maximum");
    nn::average_pool_forward(context, shape, x.data(), y.data());
    nn::average_pool_backward(context, shape, upload(c["average"]["dy"]).data(), dx.data());
    expect(y, c["average"]["y"], "average");
    expect(dx, c["average"]["dx"], "dx of the average");
  }
}

struct ResNetParity : Images {
  const nlohmann::json& all = images()["resnet"];
  const nn::InputSize size{all["height"], all["width"]};

  nn::Network model() {
    nn::Network made(context, nn::parse_network(all["spec"].get<std::string>()), 1, true);
    const auto parameters = made.parameters();
    EXPECT_EQ(parameters.size(), all["tensors"].size());
    for (const nn::Parameter& p : parameters) put(p.value, floats(of_name(all["tensors"], p.name)["value"]), p.count);
    return made;
  }
  // The entry of a list that is about this tensor or layer.
  static const nlohmann::json& of_name(const nlohmann::json& list, const std::string& name) {
    for (const nlohmann::json& entry : list)
      if (entry["name"] == name) return entry;
    throw std::out_of_range(name);
  }
  // check(name of the layer, its mean, its variance) of every norm, as statistics() has them.
  template <class Check>
  static void each_norm(nn::Network& net, Check check) {
    const auto statistics = net.statistics();
    for (std::size_t i = 0; i + 1 < statistics.size(); i += 2) {
      const std::string& name = statistics[i].name;
      check(name.substr(0, name.size() - std::string(" running mean").size()), statistics[i], statistics[i + 1]);
    }
  }
  void put(float* to, const std::vector<float>& values, std::size_t count) {
    ASSERT_EQ(values.size(), count);
    device.put(to, values);
  }
  DeviceBuffer<float> input() {
    auto buffer = context.buffer<float>(all["input"].size(), Category::activations, "input");
    put(buffer.data(), floats(all["input"]), buffer.size());
    return buffer;
  }
  nn::Batch batch() { return {input(), device.upload(all["labels"].get<std::vector<int>>()), all["batch"]}; }
};

TEST_F(ResNetParity, LossEveryGradientAndRunningStatistics) {
  for (const auto way : {nn::ConvolutionWay::im2col, nn::ConvolutionWay::tiled, nn::ConvolutionWay::direct}) {
    nn::Network net = model();
    net.forward_backward(context, batch(), size, {.way = way});
    const double loss = all["loss"];
    EXPECT_NEAR(net.loss(context), loss, kImageTolerance * loss) << name_of(way);
    for (const nn::Parameter& p : net.parameters())
      expect_close(device.download(p.gradient, p.count), floats(of_name(all["tensors"], p.name)["gradient"]),
                   kImageTolerance, std::string(name_of(way)) + ": gradient of " + p.name);
    EXPECT_EQ(net.statistics().size(), 2 * all["running"].size());
    each_norm(net, [&](const std::string& name, const nn::Parameter& mean, const nn::Parameter& variance) {
      const auto& expected = of_name(all["running"], name);
      expect_close(device.download(mean.value, mean.count), floats(expected["mean"]), kImageTolerance, mean.name);
      expect_close(device.download(variance.value, variance.count), floats(expected["variance"]), kImageTolerance,
                   variance.name);
    });
  }
}

// With the statistics of this very batch, inference computes what training does.
TEST_F(ResNetParity, Logits) {
  nn::Network net = model();
  std::size_t norms = 0;
  each_norm(net, [&](const std::string& name, const nn::Parameter& mean, const nn::Parameter& variance) {
    // all["of_batch"] is in the order of all["running"]
    const auto& running = all["running"];
    const auto at = std::find(running.begin(), running.end(), of_name(running, name)) - running.begin();
    put(mean.value, floats(all["of_batch"][std::size_t(at)]["mean"]), mean.count);
    put(variance.value, floats(all["of_batch"][std::size_t(at)]["variance"]), variance.count);
    ++norms;
  });
  EXPECT_EQ(norms, all["of_batch"].size());
  for (const auto way : {nn::ConvolutionWay::im2col, nn::ConvolutionWay::tiled, nn::ConvolutionWay::direct})
    expect(net.forward(context, input(), all["batch"], size, {.way = way}), all["logits"], name_of(way));
}

TEST_F(ResNetParity, TenAdamWLossesAndInference) {
  nn::Network net = model();
  const auto& a = all["adamw"];
  const nn::AdamWSettings adamw{a["lr"], a["betas"][0], a["betas"][1], a["eps"], a["weight_decay"]};
  nn::Optimizer<float> optimizer(context, net.parameters(), {}, {.adamw = adamw});
  for (const double expected : all["losses"]) {
    net.train_step(context, batch(), size, optimizer);
    EXPECT_NEAR(net.loss(context), expected, kImageTolerance * expected);
  }
  expect(net.forward(context, input(), all["batch"], size), all["inference"], "logits");
}

}  // namespace
}  // namespace oomlab::test
