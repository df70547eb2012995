#include "nn/optimizer/optimizer.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <functional>

#include "cuda/block_threads.h"
#include "device.h"

namespace oomlab::test {
namespace {

using namespace nn;

class Optimizers : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }
  Device device;
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Optimizers, ::testing::ValuesIn(kDistinctBlockThreads));

constexpr int kSteps = 7;

// Two tensors, one of a size that fills no pack, and other gradients in each step.
struct Tensors {
  std::vector<std::vector<float>> start{random_floats(1003, 1), random_floats(10, 2)};
  std::vector<float> gradient(std::size_t tensor, int step) const {
    return random_floats(start[tensor].size(), 10 + 2 * static_cast<unsigned>(step) + static_cast<unsigned>(tensor),
                         0.1f);
  }
};

void compare(Device& device, const std::function<Optimizer<float>(const std::vector<Parameter>&)>& make,
             const std::function<void(double& w, double g, double& m, double& v, int t)>& reference) {
  const Tensors tensors;
  std::vector<DeviceBuffer<float>> values, gradients;
  std::vector<Parameter> parameters;
  for (const auto& start : tensors.start) {
    values.push_back(device.upload(start));
    gradients.push_back(device.upload(start));
    parameters.push_back({"t", values.back().data(), gradients.back().data(), start.size()});
  }
  auto optimizer = make(parameters);
  std::vector<std::vector<double>> w, m, v;
  for (const auto& start : tensors.start) {
    w.push_back(doubles(start));
    m.emplace_back(start.size());
    v.emplace_back(start.size());
  }
  for (int t = 1; t <= kSteps; ++t) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const auto g = tensors.gradient(i, t);
      device.put(gradients[i].data(), g);
      for (std::size_t j = 0; j < g.size(); ++j) reference(w[i][j], g[j], m[i][j], v[i][j], t);
    }
    optimizer.step(device.context);
    EXPECT_EQ(optimizer.steps(), static_cast<std::uint64_t>(t));
    for (std::size_t i = 0; i < w.size(); ++i)
      expect_close(device.download(values[i]), w[i], 1e-5, "step " + std::to_string(t));
  }
}

TEST_P(Optimizers, Sgd) {
  compare(
      device, [&](const auto& p) { return Optimizer<float>(device.context, p, {UpdateRule::sgd}, {.sgd = {0.1f}}); },
      [](double& w, double g, double&, double&, int) { w -= double(0.1f) * g; });
}

TEST_P(Optimizers, Momentum) {
  compare(
      device,
      [&](const auto& p) {
        return Optimizer<float>(device.context, p, {UpdateRule::momentum}, {.sgd = {0.1f, 0.9f}});
      },
      [](double& w, double g, double& v, double&, int) {
        v = double(0.9f) * v + g;
        w -= double(0.1f) * v;
      });
}

TEST_P(Optimizers, AdamW) {
  const AdamWSettings s{0.01f, 0.9f, 0.95f, 1e-8f, 0.1f};
  compare(
      device, [&](const auto& p) { return Optimizer<float>(device.context, p, {}, {.adamw = s}); },
      [&](double& w, double g, double& m, double& v, int t) {
        const double b1 = s.beta1, b2 = s.beta2;
        m = b1 * m + (1 - b1) * g;
        v = b2 * v + (1 - b2) * g * g;
        w -= double(s.lr) * double(s.weight_decay) * w;
        w -= double(s.lr) * (m / (1 - std::pow(b1, t))) / (std::sqrt(v / (1 - std::pow(b2, t))) + double(s.eps));
      });
}

// More tensors than one launch takes, of sizes that fill packs and that do not: each as if it were alone.
TEST(ManyTensors, EachIsUpdatedOnceAsIfItWereAlone) {
  Device device;
  constexpr std::size_t kTensors = 1030;
  const AdamWSettings s{0.01f, 0.9f, 0.95f, 1e-8f, 0.1f};
  std::vector<DeviceBuffer<float>> values, gradients;
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < kTensors; ++i) {
    values.push_back(device.upload(random_floats(1 + i % 9, static_cast<unsigned>(i))));
    gradients.push_back(device.upload(random_floats(1 + i % 9, static_cast<unsigned>(kTensors + i))));
    parameters.push_back({"t", values[i].data(), gradients[i].data(), 1 + i % 9});
  }
  std::vector<std::vector<float>> alone;
  for (std::size_t i = 0; i < kTensors; ++i) {
    auto value = device.upload(device.download(values[i]));
    auto first = device.upload(std::vector<float>(1 + i % 9)), second = device.upload(std::vector<float>(1 + i % 9));
    adamw_update(device.context, value.data(), gradients[i].data(), first.data(), second.data(), 1 + i % 9, s, 1);
    alone.push_back(device.download(value));
  }
  Optimizer<float> adamw(device.context, parameters, {}, {.adamw = s});
  adamw.step(device.context);
  for (std::size_t i = 0; i < kTensors; ++i) EXPECT_EQ(device.download(values[i]), alone[i]) << "tensor " << i;
}

TEST(OptimizerState, TagsAndCategory) {
  Device device;
  const auto value = device.upload(std::vector<float>(100)), gradient = device.upload(std::vector<float>(100));
  const std::vector<Parameter> parameters{
      {"layer 1 weight", const_cast<float*>(value.data()), const_cast<float*>(gradient.data()), 100}};
  const auto live = [&] { return device.ledger.live_by_category()[Category::optimizer]; };
  {
    const Optimizer<float> sgd(device.context, parameters, {UpdateRule::sgd});
    EXPECT_EQ(live(), 0u);
    EXPECT_EQ(sgd.form().rule, UpdateRule::sgd);
  }
  {
    const Optimizer<float> momentum(device.context, parameters, {UpdateRule::momentum});
    EXPECT_EQ(live(), 512u);
  }
  {
    const Optimizer<float> adamw(device.context, parameters);
    EXPECT_EQ(live(), 1024u);
    std::vector<std::string> tags;
    for (const auto& [address, block] : device.ledger.live_blocks())
      if (block.category == Category::optimizer) tags.push_back(block.tag);
    std::sort(tags.begin(), tags.end());
    EXPECT_EQ(tags, (std::vector<std::string>{"layer 1 weight m", "layer 1 weight v"}));
  }
  EXPECT_EQ(live(), 0u);
}

TEST(OptimizerState, ParametersNeedGradients) {
  Device device;
  float value = 0;
  EXPECT_THROW(Optimizer<float>(device.context, {{"bias", &value, nullptr, 1}}), std::invalid_argument);
  EXPECT_EQ(device.ledger.live_by_category()[Category::optimizer], 0u);
}

// What a parameter does not say cannot be guessed.
TEST(OptimizerState, RulesThatAskForShapesGetThem) {
  Device device;
  const auto value = device.upload(std::vector<float>(100)), gradient = device.upload(std::vector<float>(100));
  const std::vector<Parameter> parameters{
      {"weight", const_cast<float*>(value.data()), const_cast<float*>(gradient.data()), 100}};
  for (const OptimizerForm form :
       {OptimizerForm{UpdateRule::adafactor}, OptimizerForm{.rule = UpdateRule::adamw8, .wide_embeddings = true}})
    EXPECT_THROW(Optimizer<float>(device.context, parameters, form), std::invalid_argument);
  EXPECT_EQ(device.ledger.live_by_category()[Category::optimizer], 0u);
}

// Whatever T it is stored as; the state is what the plan says.
template <class T>
void expect_bytes_of_the_plan(WeightForm weights) {
  for (const UpdateRule rule :
       {UpdateRule::sgd, UpdateRule::momentum, UpdateRule::adamw, UpdateRule::adamw8, UpdateRule::adafactor}) {
    Device device;
    auto value = device.upload(std::vector<T>(64 * 100));
    const TensorShape shape{"weight", "layer 1", 64, 100};
    const OptimizerForm form{rule, weights};
    const Optimizer<T> optimizer(device.context, {shape}, {value.data()}, form);
    EXPECT_EQ(device.ledger.live_by_category()[Category::optimizer], state_bytes(shape, form)) << name_of(rule);
  }
}
TEST(OptimizerState, IsThatOfThePlan) {
  expect_bytes_of_the_plan<float>(WeightForm::stored);
  for (const WeightForm weights : {WeightForm::stored, WeightForm::master}) {
    expect_bytes_of_the_plan<__half>(weights);
    expect_bytes_of_the_plan<__nv_bfloat16>(weights);
  }
  expect_bytes_of_the_plan<__nv_bfloat16>(WeightForm::stochastic);
}

TEST(OptimizerState, BuffersOfParameterSizeAreCounted) {
  const TensorShape shape{"weight", "layer 1", 64, 128};
  for (const UpdateRule rule : {UpdateRule::sgd, UpdateRule::momentum, UpdateRule::adamw})
    EXPECT_EQ(state_buffers(rule) * shape.count() * sizeof(float), state_bytes(shape, {rule})) << name_of(rule);
  for (const UpdateRule rule : {UpdateRule::adamw8, UpdateRule::adafactor})
    EXPECT_THROW(state_buffers(rule), std::invalid_argument) << name_of(rule);
}

}  // namespace
}  // namespace oomlab::test
