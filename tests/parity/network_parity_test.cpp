// Networks that are lists of layers against PyTorch's, which are written from their definition and not from our list:
// networks.json, made by generate.py in FP64 and with our layout. A network is in the file only if PyTorch's own FP32
// differs from it by less than a fifth of the tolerance, also when the input is changed in its last bits.

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <utility>

#include "device.h"
#include "hash.h"
#include "nn/models/network.h"
#include "read_json.h"

namespace oomlab::test {
namespace {

constexpr double kNetworkTolerance = 1e-4;

const nlohmann::json& networks() {
  static const nlohmann::json all = [] {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/networks.json");
    return read_json(file);
  }();
  return all;
}

// A small MobileNetV3: its blocks, two of them with squeeze and excitation, one with a stride.
nn::NetworkSpec inverted_residuals() {
  using nn::Activation, nn::Layer, nn::LayerKind;
  nn::NetworkSpec spec{.name = "inverted residuals", .classes = 5, .layers = {}};
  const auto add = [&](Layer layer) {
    spec.layers.push_back(std::move(layer));
    return spec.layers.size();
  };
  const auto unit = [&](const std::string& name, std::size_t from, std::size_t out, std::size_t kernel,
                        std::size_t stride, Activation activation, std::size_t also = Layer::kNone) {
    const auto kind = name.ends_with("depthwise") ? LayerKind::depthwise : LayerKind::convolution;
    return add({.name = name,
                .kind = kind,
                .from = from,
                .also = also,
                .out = out,
                .kernel = kernel,
                .stride = stride,
                .padding = kernel / 2,
                .activation = activation});
  };
  constexpr auto none = Activation::none, relu = Activation::relu, swish = Activation::hard_swish;
  const std::size_t stem = unit("stem", 0, 6, 3, 1, swish);
  std::size_t x = unit("block 1 depthwise", stem, 6, 3, 1, relu);
  const std::size_t first = unit("block 1 project", x, 6, 1, 1, none, stem);
  x = unit("block 2 expand", first, 12, 1, 1, relu);
  x = unit("block 2 depthwise", x, 12, 5, 2, relu);
  x = add({.name = "block 2", .kind = LayerKind::squeeze_excite, .from = x, .out = 12, .squeeze = 4});
  const std::size_t second = unit("block 2 project", x, 8, 1, 1, none);
  x = unit("block 3 expand", second, 20, 1, 1, swish);
  x = unit("block 3 depthwise", x, 20, 5, 1, swish);
  x = add({.name = "block 3", .kind = LayerKind::squeeze_excite, .from = x, .out = 20, .squeeze = 6});
  x = unit("block 3 project", x, 8, 1, 1, none, second);
  x = unit("last", x, 16, 1, 1, swish);
  x = add({.name = "global pool", .kind = LayerKind::global_pool, .from = x, .out = 16});
  x = add({.name = "classifier", .kind = LayerKind::linear, .from = x, .out = 14, .activation = swish});
  add({.name = "head", .kind = LayerKind::linear, .from = x, .out = spec.classes});
  return spec;
}

std::vector<nn::NetworkSpec> specs_in_fixture() {
  const nn::ResNetSpec resnet = nn::parse_resnet("resnet:2-6");
  return {nn::parse_network("mobilenet:5"),
          nn::parse_network("unet:2-3"),
          nn::parse_network("two-branch:4"),
          nn::network_of(resnet, {.width_percent = 75}),
          nn::network_of(resnet, {.separable = true}),
          nn::network_of(resnet, {.shared = true}),
          inverted_residuals()};
}

// A hash as a value of [about − bound, about + bound] that BF16 has: uniform() of generate.py.
float hashed_value(std::uint64_t seed, std::uint64_t stream, std::uint64_t index, float bound, float about) {
  const float u = static_cast<float>(hash(seed, stream, index)) * 0x1p-23f - 1.0f;
  return static_cast<float>(static_cast<__nv_bfloat16>(u * bound + about));
}

class NetworkParity : public ::testing::TestWithParam<std::size_t> {
 protected:
  const nn::NetworkSpec spec = specs_in_fixture()[GetParam()];
  const nlohmann::json& all = networks()["networks"].at(GetParam());
  const nn::InputSize size{all["height"], all["width"]};
  const std::size_t batch_size = all["batch"];
  const std::uint64_t seed = all["seed"];
  const nn::NetworkShapes shapes = nn::shapes_of(spec, batch_size, size);
  Device device;
  Context& context = device.context;

  void SetUp() override { ASSERT_EQ(spec.name, all["name"].get<std::string>()); }

  void put(float* to, const std::vector<float>& values) {
    CUDA_CHECK(
        cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice, context.stream()));
    context.synchronize();
  }
  std::vector<float> hashed(std::uint64_t stream, std::size_t count, float bound, float about) const {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = hashed_value(seed, stream, i, bound, about);
    return values;
  }
  // Of a tensor's first values: bound_of() of generate.py.
  static float bound_of(const std::string& name) {
    if (name.ends_with("excite weight") || name.ends_with("classifier weight")) return 4.0f;
    return name.ends_with("weight") ? 0.5f : 0.25f;
  }
  nn::Network model() {
    nn::Network made(context, spec, 1, true);
    std::uint64_t stream = 2;
    for (const nn::Parameter& p : made.parameters())
      put(p.value, hashed(stream++, p.count, bound_of(p.name), p.name.ends_with("gamma") ? 1.0f : 0.0f));
    return made;
  }
  DeviceBuffer<float> input() {
    auto buffer = context.buffer<float>(shapes.elements(0), Category::activations, "input");
    put(buffer.data(), hashed(0, buffer.size(), 2.0f, 0.0f));
    return buffer;
  }
  nn::Batch batch() {
    std::vector<int> labels(shapes.labels());
    for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int>(hash(seed, 1, i) % spec.classes);
    return {input(), device.upload(labels), batch_size};
  }
  static std::vector<std::pair<std::string, nn::NetworkForm>> forms() {
    return {{"default", {}},
            {"direct, apart, recomputed",
             {.way = nn::ConvolutionWay::direct, .activation_in_place = false, .recompute_norms = true}}};
  }
  static std::vector<double> values_of(const nlohmann::json& tensor) {
    return tensor["values"].get<std::vector<double>>();
  }
};
INSTANTIATE_TEST_SUITE_P(Networks, NetworkParity, ::testing::Range<std::size_t>(0, specs_in_fixture().size()),
                         [](const auto& i) {
                           std::string name = specs_in_fixture()[i.param].name;
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

TEST(NetworkFixture, EveryNetworkIsCompared) { EXPECT_EQ(networks()["networks"].size(), specs_in_fixture().size()); }

TEST_P(NetworkParity, LossEveryGradientAndRunningStatistics) {
  for (const auto& [how, form] : forms()) {
    nn::Network net = model();
    net.forward_backward(context, batch(), size, form);
    const double loss = all["losses"][0];
    EXPECT_NEAR(net.loss(context), loss, kNetworkTolerance * loss) << how;
    const auto parameters = net.parameters(), statistics = net.statistics();
    ASSERT_EQ(parameters.size(), all["gradients"].size());
    std::vector<double> before;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const nn::Parameter& p = parameters[i];
      ASSERT_EQ(p.name, all["gradients"][i]["name"].get<std::string>());
      auto found = device.download(p.gradient, p.count);
      auto expected = values_of(all["gradients"][i]);
      // A beta that only 1 × 1 convolutions with a norm read changes nothing: what is there instead of its zeros is
      // rounding, and is measured against the gradient of the same norm's gamma.
      if (std::ranges::all_of(expected, [](double v) { return v == 0; })) {
        EXPECT_TRUE(p.name.ends_with("project beta")) << p.name;
        const double largest = std::ranges::max(before, {}, [](double v) { return std::fabs(v); });
        found.push_back(static_cast<float>(largest));
        expected.push_back(largest);
      }
      expect_close(found, expected, kNetworkTolerance, how + ": gradient of " + p.name);
      before = std::move(expected);
    }
    ASSERT_EQ(statistics.size(), all["statistics"].size());
    for (std::size_t i = 0; i < statistics.size(); ++i) {
      ASSERT_EQ(statistics[i].name, all["statistics"][i]["name"].get<std::string>());
      expect_close(device.download(statistics[i].value, statistics[i].count), values_of(all["statistics"][i]),
                   kNetworkTolerance, how + ": " + statistics[i].name);
    }
  }
}

TEST_P(NetworkParity, TenAdamWLossesAndInference) {
  const auto& a = networks()["adamw"];
  for (const auto& [how, form] : forms()) {
    nn::Network net = model();
    const nn::AdamWSettings adamw{a["lr"], a["betas"][0], a["betas"][1], a["eps"], a["weight_decay"]};
    nn::Optimizer<float> optimizer(context, net.parameters(), {}, {.adamw = adamw});
    for (const double expected : all["losses"]) {
      net.train_step(context, batch(), size, optimizer, form);
      EXPECT_NEAR(net.loss(context), expected, kNetworkTolerance * expected) << how;
    }
    const auto logits = device.download(net.forward(context, input(), batch_size, size, form));
    ASSERT_EQ(logits.size(), shapes.labels() * spec.classes);
    std::vector<float> found;
    for (std::size_t i = 0; i < logits.size(); i += all["every"].get<std::size_t>()) found.push_back(logits[i]);
    expect_close(found, all["inference"].get<std::vector<double>>(), kNetworkTolerance, how + ": logits");
  }
}

}  // namespace
}  // namespace oomlab::test
