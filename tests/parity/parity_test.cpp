// Our transformer against PyTorch's: the fixtures beside this file, made by generate.py.

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "device.h"
#include "hash.h"
#include "nn/models/transformer.h"
#include "nn/optimizer/mixed_precision.h"
#include "read_json.h"

namespace oomlab::test {
namespace {

using namespace nn;
using nlohmann::json;

json fixture_file(const std::string& name) {
  std::ifstream file(std::string(OOMLAB_FIXTURES) + "/" + name);
  return read_json(file);
}
TransformerSpec spec_of(const json& shape) {
  using Style = TransformerSpec::Style;
  const std::string style = shape["style"];
  TransformerSpec spec{style,
                       style == "bert"    ? Style::bert
                       : style == "llama" ? Style::llama
                                          : Style::gpt,
                       shape["layers"],
                       shape["heads"],
                       shape["width"],
                       shape["vocabulary"],
                       shape["positions"]};
  if (!spec.llama()) return spec;
  spec.kv_heads = shape["kv_heads"], spec.mlp = shape["mlp"];
  spec.tied = shape["tied"], spec.qkv_bias = shape["qkv_bias"];
  spec.epsilon = shape["epsilon"], spec.rotary.theta = shape["theta"];
  if (shape["factor"] != 1.0)
    spec.rotary = {shape["theta"], Rotary::Scaling::llama3, shape["factor"], 1, 4, shape["original_positions"]};
  return spec;
}
AdamWSettings adamw_of(const json& a) { return {a["lr"], a["betas"][0], a["betas"][1], a["eps"], a["weight_decay"]}; }

template <class T>
void set(Device& device, const ParameterOf<T>& p, const std::vector<float>& values) {
  ASSERT_EQ(values.size(), p.count) << p.name;
  const std::vector<T> stored(values.begin(), values.end());
  device.put(p.value, stored);
}

struct Fixture {
  json all;
  TransformerSpec spec;
  std::vector<int> tokens, labels;

  explicit Fixture(const std::string& name)
      : all(fixture_file(name + ".json")), spec(spec_of(all)), tokens(all["tokens"]), labels(all["labels"]) {}
  void load(Device& device, Transformer<float>& model) const {
    const auto parameters = model.parameters();
    ASSERT_EQ(parameters.size(), all["parameters"].size());
    for (const auto& p : parameters) set(device, p, all["parameters"][p.name]);
  }
  TokenBatch batch(Context& context) const {
    return make_token_batch(context, tokens, labels, all["sequences"], all["seq"]);
  }
};

class Parity : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Styles, Parity, ::testing::Values("gpt", "bert", "llama", "llama-own-head"),
                         [](const auto& i) {
                           std::string name = i.param;
                           std::erase(name, '-');
                           return name;
                         });

// llm.c's own checks of its FP32 against PyTorch allow 1e-2 (logits, loss, gradients); these are a hundred times
// tighter.
constexpr double kTolerance = 1e-4;

TEST_P(Parity, Fp32LogitsLossAndEveryGradient) {
  const Fixture fixture(GetParam());
  const json& expected = fixture.all;
  Device device;
  Transformer<float> model(device.context, fixture.spec, 1);
  fixture.load(device, model);
  const auto logits = device.download(model.logits(device.context, fixture.batch(device.context)));
  expect_close(logits, expected["logits"].get<std::vector<double>>(), kTolerance, "logits");
  for (const AttentionForm attention : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused})
    for (const bool lean : {false, true}) {
      StepForm form{.attention = attention};
      if (lean) form = {attention, LossForm::chunked, Keep::selective_recompute(), true};
      model.set_form(form);
      model.forward_backward(device.context, fixture.batch(device.context));
      EXPECT_NEAR(model.loss(device.context), expected["loss"].get<double>(), kTolerance) << name_of(attention);
      for (const auto& p : model.parameters())
        expect_close(device.download(p.gradient, p.count), expected["gradients"][p.name].get<std::vector<double>>(),
                     kTolerance, std::string(name_of(attention)) + (lean ? ", lean: " : ": ") + p.name);
    }
}

TEST_P(Parity, Fp32TenAdamWLosses) {
  const Fixture fixture(GetParam());
  Device device;
  Transformer<float> model(device.context, fixture.spec, 1);
  fixture.load(device, model);
  Optimizer<float> optimizer(device.context, model.parameters(), {}, {.adamw = adamw_of(fixture.all["adamw"])});
  for (const double expected : fixture.all["losses"]) {
    model.forward_backward(device.context, fixture.batch(device.context));
    EXPECT_NEAR(model.loss(device.context), expected, kTolerance * expected);
    optimizer.step(device.context);
  }
}

// ---- BF16: how far it is from what FP32 computes, against how far PyTorch's is

// A model of bf16.json: values that BF16 has, and a batch whose every fourth place has no target.
struct HashedModel {
  TransformerSpec spec;
  std::uint64_t seed;
  std::size_t sequences, seq;

  template <class T>
  void load(Device& device, Transformer<T>& model) const {
    std::uint64_t stream = 0;
    for (const auto& p : model.parameters()) {
      const bool matrix = p.name.ends_with("weight") || p.name.ends_with("embedding");
      const float bound = matrix ? 0.5f : 0.25f, about = p.name.ends_with("gamma") ? 1.0f : 0.0f;
      std::vector<float> values(p.count);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float u = static_cast<float>(hash(seed, stream, i)) * 0x1p-23f - 1.0f;
        values[i] = static_cast<float>(static_cast<__nv_bfloat16>(u * bound + about));
      }
      set(device, p, values);
      ++stream;
    }
  }
  TokenBatch batch(Context& context, std::size_t streams) const {
    std::vector<int> tokens(sequences * seq), labels(sequences * seq);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int>(hash(seed, streams, i) % spec.vocabulary);
      labels[i] = i % 4 ? static_cast<int>(hash(seed, streams + 1, i) % spec.vocabulary) : -1;
    }
    return make_token_batch(context, tokens, labels, sequences, seq);
  }
};

struct Training {
  std::vector<double> logits, gradients, losses;  // of the first step, the first step, and ten
};
template <class T>
Training train(const HashedModel& from, const AdamWSettings& adamw) {
  Device device;
  Transformer<T> model(device.context, from.spec, 1);
  from.load(device, model);
  const auto parameters = model.parameters();
  const auto append = [](std::vector<double>& to, const std::vector<T>& values) {
    for (const T& v : values) to.push_back(static_cast<float>(v));
  };
  const auto batch = [&] { return from.batch(device.context, parameters.size()); };
  Training result;
  append(result.logits, device.download(model.logits(device.context, batch())));
  const auto steps = [&](auto& optimizer, const float* scale_on_device) {
    for (int step = 0; step < 10; ++step) {
      model.forward_backward(device.context, batch(), {}, scale_on_device);
      result.losses.push_back(model.loss(device.context));
      if (step == 0)
        for (const auto& p : parameters) append(result.gradients, device.download(p.gradient, p.count));
      optimizer.step(device.context);
    }
  };
  if constexpr (std::is_same_v<T, float>) {
    Optimizer<float> optimizer(device.context, parameters, {}, {.adamw = adamw});
    steps(optimizer, nullptr);
  } else {
    ScaledOptimizer<T> optimizer(device.context, parameters, LossScaling::none(), {.adamw = adamw});
    steps(optimizer, optimizer.scale_on_device());
  }
  return result;
}

double relative(const std::vector<double>& found, const std::vector<double>& expected) {
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    square += expected[i] * expected[i];
  }
  return std::sqrt(difference / square);
}

double root_mean_square(const std::vector<double>& values) {
  double square = 0;
  for (const double v : values) square += v * v;
  return std::sqrt(square / static_cast<double>(values.size()));
}

// The ratio of two root mean squares over the same models, and the upper end of its 95 % interval: models drawn again
// with replacement (bootstrap; Efron, 1979), 4,000 times.
struct Ratio {
  double estimate, upper;
};
Ratio ratio_of(const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::mt19937 random(1);
  std::vector<double> ratios, a(ours.size()), b(ours.size());
  for (int draw = 0; draw < 4000; ++draw) {
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const std::size_t model = random() % ours.size();
      a[i] = ours[model], b[i] = theirs[model];
    }
    ratios.push_back(root_mean_square(a) / root_mean_square(b));
  }
  std::ranges::sort(ratios);
  return {root_mean_square(ours) / root_mean_square(theirs), ratios[ratios.size() * 975 / 1000]};
}

// Over all models: what ours is off by, and PyTorch, in units of PyTorch's root mean square for the same style and
// shape.
TEST(Bf16, ErrorsAreNotLargerThanPyTorchs) {
  const json fixture = fixture_file("bf16.json");
  const AdamWSettings adamw = adamw_of(fixture["adamw"]);
  constexpr const char* kNames[] = {"logits", "gradients", "losses"};
  std::vector<double> all_ours[3], all_theirs[3];
  for (const json& shape : fixture["shapes"]) {
    std::vector<double> ours[3], theirs[3];
    for (std::size_t seed = 1; seed <= shape["seeds"].size(); ++seed) {
      if (OOMLAB_SANITIZED && seed > 1) break;  // errors of arithmetic are the same in every build
      const json& pytorch = shape["seeds"][seed - 1];
      const HashedModel model{spec_of(shape), seed, shape["sequences"], shape["seq"]};
      const Training exact = train<float>(model, adamw), rounded = train<__nv_bfloat16>(model, adamw);
      // FP32 is near enough to FP64 to stand for it, and both had the same model.
      EXPECT_LE(relative(exact.losses, pytorch["fp64_losses"]), 0.05 * pytorch["losses"].get<double>()) << seed;
      const double errors[] = {relative(rounded.logits, exact.logits), relative(rounded.gradients, exact.gradients),
                               relative(rounded.losses, exact.losses)};
      for (std::size_t what = 0; what < 3; ++what) {
        ours[what].push_back(errors[what]);
        theirs[what].push_back(pytorch[kNames[what]]);
      }
    }
    for (std::size_t what = 0; what < 3; ++what) {
      const double unit = root_mean_square(theirs[what]);
      std::printf("%s, width %d, %s: off by %.2e, PyTorch by %.2e\n", shape["style"].get<std::string>().c_str(),
                  shape["width"].get<int>(), kNames[what], root_mean_square(ours[what]), unit);
      for (const double error : ours[what]) all_ours[what].push_back(error / unit);
      for (const double error : theirs[what]) all_theirs[what].push_back(error / unit);
    }
  }
  if (OOMLAB_SANITIZED) return;
  for (std::size_t what = 0; what < 3; ++what) {
    const Ratio ratio = ratio_of(all_ours[what], all_theirs[what]);
    std::printf("%s: %.2f of PyTorch's error, at most %.2f\n", kNames[what], ratio.estimate, ratio.upper);
    EXPECT_LE(ratio.estimate, 1.05) << kNames[what];
    EXPECT_LE(ratio.upper, 1.10) << kNames[what];
  }
}

}  // namespace
}  // namespace oomlab::test
