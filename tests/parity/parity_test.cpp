// Our transformer against PyTorch's: the fixtures beside this file, made by generate.py.

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <fstream>

#include "device.h"
#include "nn/mixed_precision.h"
#include "nn/transformer.h"
#include "read_json.h"

namespace oomlab::test {
namespace {

using namespace nn;
using nlohmann::json;

struct Fixture {
  json all;
  TransformerSpec spec;
  std::vector<int> tokens, labels;
  AdamWSettings adamw;

  explicit Fixture(const std::string& style) {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/" + style + ".json");
    all = read_json(file);
    spec = {style,           style == "bert" ? TransformerSpec::Style::bert : TransformerSpec::Style::gpt,
            all["layers"],   all["heads"],
            all["width"],    all["vocabulary"],
            all["positions"]};
    tokens = all["tokens"].get<std::vector<int>>();
    labels = all["labels"].get<std::vector<int>>();
    const json& a = all["adamw"];
    adamw = {a["lr"], a["betas"][0], a["betas"][1], a["eps"], a["weight_decay"]};
  }
  template <class T>
  void load(Transformer<T>& model) const {
    const auto parameters = model.parameters();
    ASSERT_EQ(parameters.size(), all["parameters"].size());
    for (const auto& p : parameters) {
      const auto values = all["parameters"][p.name].template get<std::vector<float>>();
      ASSERT_EQ(values.size(), p.count) << p.name;
      const std::vector<T> stored(values.begin(), values.end());
      CUDA_CHECK(cudaMemcpy(p.value, stored.data(), p.count * sizeof(T), cudaMemcpyHostToDevice));
    }
  }
  TokenBatch batch(Context& context) const {
    return make_token_batch(context, tokens, labels, all["sequences"], all["seq"]);
  }
};

class Parity : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Styles, Parity, ::testing::Values("gpt", "bert"), [](const auto& i) { return i.param; });

// llm.c's own checks of its FP32 against PyTorch allow 1e-2 (logits, loss, gradients); these are a hundred times
// tighter.
constexpr double kTolerance = 1e-4;

TEST_P(Parity, Fp32LogitsLossAndEveryGradient) {
  const Fixture fixture(GetParam());
  const json& expected = fixture.all["fp32"];
  Device device;
  Transformer<float> model(device.context, fixture.spec, 1);
  fixture.load(model);
  const auto logits = device.download(model.logits(device.context, fixture.batch(device.context)));
  expect_close(logits, expected["logits"].get<std::vector<double>>(), kTolerance, "logits");
  model.forward_backward(device.context, fixture.batch(device.context));
  EXPECT_NEAR(model.loss(device.context), expected["loss"].get<double>(), kTolerance);
  for (const auto& p : model.parameters())
    expect_close(device.download(p.gradient, p.count), expected["gradients"][p.name].get<std::vector<double>>(),
                 kTolerance, p.name);
}

TEST_P(Parity, Fp32TenAdamWLosses) {
  const Fixture fixture(GetParam());
  Device device;
  Transformer<float> model(device.context, fixture.spec, 1);
  fixture.load(model);
  AdamW optimizer(device.context, model.parameters(), fixture.adamw);
  for (const double expected : fixture.all["fp32"]["losses"]) {
    model.forward_backward(device.context, fixture.batch(device.context));
    EXPECT_NEAR(model.loss(device.context), expected, kTolerance * expected);
    optimizer.step(device.context);
  }
}

double relative(const std::vector<double>& found, const std::vector<double>& expected) {
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    square += expected[i] * expected[i];
  }
  return std::sqrt(difference / square);
}

template <class T>
void append(std::vector<double>& to, const std::vector<T>& values) {
  for (const T& v : values) to.push_back(static_cast<float>(v));
}

// How far BF16 is from FP64, against how far PyTorch's BF16 is.
TEST_P(Parity, Bf16IsAsCloseToFp64AsPyTorchs) {
  const Fixture fixture(GetParam());
  const json &expected = fixture.all["fp64_from_bf16"], &allowed = fixture.all["bf16_error"];
  Device device;
  Transformer<__nv_bfloat16> model(device.context, fixture.spec, 1);
  fixture.load(model);
  MixedAdamW<__nv_bfloat16> optimizer(device.context, model.parameters(), fixture.adamw, LossScaling::none());

  std::vector<double> logits, gradients, expected_gradients, losses;
  append(logits, device.download(model.logits(device.context, fixture.batch(device.context))));
  for (std::size_t step = 0; step < expected["losses"].size(); ++step) {
    model.forward_backward(device.context, fixture.batch(device.context), {}, optimizer.scale_on_device());
    losses.push_back(model.loss(device.context));
    if (step == 0)
      for (const auto& p : model.parameters()) {
        append(gradients, device.download(p.gradient, p.count));
        append(expected_gradients, expected["gradients"][p.name].get<std::vector<float>>());
      }
    optimizer.step(device.context);
  }
  const auto check = [&](const char* what, double error) {
    const double pytorch = allowed[what];
    std::printf("%s: off by %.2e, PyTorch by %.2e\n", what, error, pytorch);
    EXPECT_LE(error, 1.5 * pytorch) << what;
  };
  check("logits", relative(logits, expected["logits"].get<std::vector<double>>()));
  check("gradients", relative(gradients, expected_gradients));
  check("losses", relative(losses, expected["losses"].get<std::vector<double>>()));
}

}  // namespace
}  // namespace oomlab::test
