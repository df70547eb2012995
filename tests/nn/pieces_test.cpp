// A tensor that is updated in two pieces has the bits of one that is updated as a whole, wherever it is split: a piece
// that begins at an odd place is updated number by number, and so is the rest that fills no pack. And they are the bits
// of the rule as it is written here.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <functional>
#include <memory>

#include "device.h"
#include "nn/optimizer/mixed_precision.h"
#include "nn/optimizer/optimizer.h"

namespace oomlab::test {
namespace {

using namespace nn;

constexpr std::size_t kCount = 1003;
constexpr std::array<std::size_t, 8> kSplits{0, 1, 2, 3, 7, 500, 501, 1002};  // 0: not at all
constexpr int kSteps = 3;

std::vector<float> gradient_of(int step) { return random_floats(kCount, 10 + static_cast<unsigned>(step), 0.3f); }

// Pieces of a tensor: first elements and counts.
std::vector<std::pair<std::size_t, std::size_t>> pieces_of(std::size_t split) {
  if (split == 0) return {{0, kCount}};
  return {{0, split}, {split, kCount - split}};
}

// The weights after some steps, split there. make(device, value, gradient, pieces) returns what does a step.
template <class T, class Make>
std::vector<T> weights_after(std::size_t split, Make make) {
  Device device;
  const std::vector<float> start = random_floats(kCount, 1);
  auto value = device.upload(std::vector<T>(start.begin(), start.end()));
  auto gradient = device.upload(std::vector<T>(kCount));
  const std::function<void()> step = make(device, value.data(), gradient.data(), pieces_of(split));
  for (int i = 1; i <= kSteps; ++i) {
    const std::vector<float> g = gradient_of(i);
    device.put(gradient.data(), std::vector<T>(g.begin(), g.end()));
    step();
    device.context.synchronize();
  }
  return device.download(value);
}

template <class T>
std::vector<float> as_floats(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

// rule(w, g, m, v, step) for each number; w is rounded to T between steps, unless it has an FP32 master copy.
template <class T, class Rule>
std::vector<float> expected_weights(bool master, Rule rule) {
  std::vector<float> w = random_floats(kCount, 1), m(kCount), v(kCount);
  const auto round = [](float x) { return static_cast<float>(static_cast<T>(x)); };
  for (float& x : w) x = round(x);
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> g = gradient_of(step);
    for (std::size_t i = 0; i < kCount; ++i) {
      rule(w[i], round(g[i]), m[i], v[i], step);
      if (!master) w[i] = round(w[i]);
    }
  }
  for (float& x : w) x = round(x);
  return w;
}

const AdamWSettings kAdamW{0.01f, 0.9f, 0.95f, 1e-8f, 0.1f};

void adamw_rule(float& w, float g, float& m, float& v, int step) {
  const AdamWSettings& s = kAdamW;
  const auto t = static_cast<double>(step);
  const auto rate = static_cast<float>(double(s.lr) / (1.0 - std::pow(double(s.beta1), t)));
  const auto unbiased = static_cast<float>(1.0 / (1.0 - std::pow(double(s.beta2), t)));
  const float new_to_m = (1.0f - s.beta1) * g;
  m = std::fma(s.beta1, m, new_to_m);
  float new_to_v = (1.0f - s.beta2) * g;
  new_to_v *= g;
  v = std::fma(s.beta2, v, new_to_v);
  const float root = std::sqrt(v * unbiased), change = rate * m / (root + s.eps);
  w = std::fma(std::fma(-s.lr, s.weight_decay, 1.0f), w, -change);
}

template <class T, class Make>
void expect_bits(const std::vector<float>& expected, Make make) {
  for (const std::size_t split : kSplits)
    EXPECT_EQ(as_floats(weights_after<T>(split, make)), expected) << "split at " << split;
}

std::vector<Parameter> parameters_of(float* value, float* gradient,
                                     const std::vector<std::pair<std::size_t, std::size_t>>& pieces) {
  std::vector<Parameter> parameters;
  for (const auto& [first, count] : pieces) parameters.push_back({"piece", value + first, gradient + first, count});
  return parameters;
}

template <class Make>
auto stepped_by(Make make_optimizer) {
  return [=](Device& device, float* value, float* gradient, const auto& pieces) -> std::function<void()> {
    const auto optimizer =
        std::make_shared<Optimizer<float>>(make_optimizer(device.context, parameters_of(value, gradient, pieces)));
    return [optimizer, &device] { optimizer->step(device.context); };
  };
}

TEST(Pieces, OfSgd) {
  expect_bits<float>(
      expected_weights<float>(true, [](float& w, float g, float&, float&, int) { w = std::fma(-0.03f, g, w); }),
      stepped_by([](Context& context, const std::vector<Parameter>& parameters) {
        return Optimizer<float>(context, parameters, {UpdateRule::sgd}, {.sgd = {0.03f}});
      }));
}
TEST(Pieces, OfMomentum) {
  expect_bits<float>(expected_weights<float>(true,
                                             [](float& w, float g, float& v, float&, int) {
                                               v = std::fma(0.9f, v, g);
                                               w = std::fma(-0.03f, v, w);
                                             }),
                     stepped_by([](Context& context, const std::vector<Parameter>& parameters) {
                       return Optimizer<float>(context, parameters, {UpdateRule::momentum}, {.sgd = {0.03f, 0.9f}});
                     }));
}
TEST(Pieces, OfAdamW) {
  expect_bits<float>(expected_weights<float>(true, adamw_rule),
                     stepped_by([](Context& context, const std::vector<Parameter>& parameters) {
                       return Optimizer<float>(context, parameters, {}, {.adamw = kAdamW});
                     }));
}

template <class T>
void expect_mixed_bits() {
  for (const WeightForm form : {WeightForm::master, WeightForm::stored}) {
    if (form == WeightForm::master && std::is_same_v<T, float>) continue;
    SCOPED_TRACE(name_of(form));
    expect_bits<T>(expected_weights<T>(form == WeightForm::master, adamw_rule),
                   [&](Device& device, T* value, T* gradient, const auto& pieces) -> std::function<void()> {
                     std::vector<ParameterOf<T>> parameters;
                     for (const auto& [first, count] : pieces)
                       parameters.push_back({"piece", value + first, gradient + first, count});
                     const auto optimizer = std::make_shared<ScaledOptimizer<T>>(
                         device.context, std::move(parameters), LossScaling::none(), OptimizerSettings{.adamw = kAdamW},
                         OptimizerForm{.weights = form});
                     return [optimizer, &device] { optimizer->step(device.context); };
                   });
  }
}
TEST(Pieces, OfScaledOptimizerInFp32) { expect_mixed_bits<float>(); }
TEST(Pieces, OfScaledOptimizerInFp16) { expect_mixed_bits<__half>(); }
TEST(Pieces, OfScaledOptimizerInBf16) { expect_mixed_bits<__nv_bfloat16>(); }

template <class T>
void expect_bits_of_form(OptimizerForm form) {
  const bool wide = form.weights == WeightForm::master || std::is_same_v<T, float>;
  const auto sgd = [](float& w, float g, float&, float&, int) { w = std::fma(-0.03f, g, w); };
  const std::vector<float> expected =
      form.rule == UpdateRule::sgd ? expected_weights<T>(wide, sgd) : expected_weights<T>(wide, adamw_rule);
  expect_bits<T>(expected, [&](Device& device, T* value, T* gradient, const auto& pieces) -> std::function<void()> {
    std::vector<TensorShape> shapes;
    std::vector<T*> values;
    std::vector<typename Optimizer<T>::Update> updates;
    for (const auto& [first, count] : pieces) {
      updates.push_back({shapes.size(), gradient + first});
      shapes.push_back({"piece", "layer 1", 1, count});
      values.push_back(value + first);
    }
    OptimizerSettings settings;
    settings.adamw = kAdamW;
    settings.sgd.lr = 0.03f;
    const auto optimizer =
        std::make_shared<Optimizer<T>>(device.context, std::move(shapes), std::move(values), form, settings);
    return [=, &device] {
      optimizer->update(device.context, updates);
      optimizer->end_step();
    };
  });
}
TEST(Pieces, OfEveryForm) {
  for (const UpdateRule rule : {UpdateRule::adamw, UpdateRule::sgd}) {
    SCOPED_TRACE(name_of(rule));
    expect_bits_of_form<float>({rule});
    for (const WeightForm form : {WeightForm::stored, WeightForm::master}) {
      SCOPED_TRACE(name_of(form));
      expect_bits_of_form<__half>({rule, form});
      expect_bits_of_form<__nv_bfloat16>({rule, form});
    }
  }
}

}  // namespace
}  // namespace oomlab::test
