// The gradients of the whole transformer: the same in every form of a step, and along them the loss falls as they say.
// Numbers against another implementation: tests/parity.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <span>
#include <string_view>

#include "transformer_runs.h"

namespace oomlab::test {
namespace {

// Every form computes the same step: loss and every gradient, textbook against each other one.
TEST(StepForms, LossAndEveryGradientAreThoseOfTheTextbook) {
  constexpr std::string_view kLongInCheckMode = "llama:2-6-2-24-40";
  for (const char* name : {"gpt:3-3-24", "bert:3-3-24", "llama:3-6-3-24-40", "llama:2-6-2-24-40"}) {
    TransformerSpec spec = tiny(name, 257);
    spec.positions = 100;
    Device device;
    Transformer<float> model(device.context, spec, 1);
    make_wide(device, model);
    for (const std::size_t seq : {7u, 100u}) {
      if (OOMLAB_ROUNDS < 10 && seq == 100 && name != kLongInCheckMode) continue;
      Tokens tokens(spec, 2, seq, 5);
      // No targets at either end: with long sequences in several chunks of the loss.
      std::fill_n(tokens.labels.begin(), 2 * seq / 5, -1);
      std::fill_n(tokens.labels.rbegin(), seq / 3, -1);
      model.set_form({});
      model.forward_backward(device.context, tokens.batch(device.context));
      const float loss = model.loss(device.context);
      const auto expected = gradients(device, model);
      for (const StepForm& form : forms()) {
        model.set_form(form);
        for (const auto& p : model.parameters()) fill(device.context, p.gradient, p.count, NAN);
        model.forward_backward(device.context, tokens.batch(device.context));
        const std::string what = std::string(name) + " " + name_of(form.attention) + " " + name_of(form.loss);
        EXPECT_NEAR(model.loss(device.context), loss, 1e-5 * loss) << what;
        const auto found = gradients(device, model);
        for (std::size_t i = 0; i < found.size(); ++i) {
          double square = 0, all = 0;
          for (std::size_t k = 0; k < found[i].size(); ++k) {
            square += std::pow(double(found[i][k]) - expected[i][k], 2);
            all += std::pow(double(expected[i][k]), 2);
          }
          EXPECT_LE(std::sqrt(square), 1e-5 * std::sqrt(all) + 1e-9) << what << ", tensor " << i;
        }
      }
    }
  }
}

// An MLP by tiles has the same rows: loss and gradients are the same bits, but those that are sums over rows, of which a
// tile has some. With a norm that is kept these are the MLP's two matrices and their biases. (Tiles have rows enough:
// products of a few rows are done in another way, whose sums have another order.)
TEST(StepForms, TilesOfAnMlpChangeNoBitOfARow) {
  for (const char* name : {"gpt:2-3-24", "bert:2-3-24", "llama:2-6-2-24-40"})
    for (const std::uint64_t tiles : {2u, 3u}) {
      const TransformerSpec spec = tiny(name);
      Device device;
      Transformer<float> model(device.context, spec, 1);
      make_wide(device, model);
      const Tokens tokens(spec, 3, 16, 5);
      model.forward_backward(device.context, tokens.batch(device.context));
      const float loss = model.loss(device.context);
      const auto expected = gradients(device, model);
      model.set_form({.mlp_tiles = tiles});
      model.forward_backward(device.context, tokens.batch(device.context));
      EXPECT_EQ(model.loss(device.context), loss) << name;
      const auto found = gradients(device, model);
      std::size_t differ = 0;
      std::size_t i = 0;
      for (const auto& p : model.parameters()) {
        if (found[i] != expected[i]) {
          ++differ;
          const auto has = [&](const char* word) { return p.name.find(word) != std::string::npos; };
          EXPECT_TRUE(has("gate and up") || has("expand") || has("contract"))
              << name << ", " << tiles << ": " << p.name;
        }
        ++i;
      }
      EXPECT_GT(differ, 0u) << name;
    }
}

// In 16 bits, where every form rounds elsewhere: how far the gradients of a step are from FP32's, the mean over twenty
// models. Chunks of the loss add up the head's gradient in 16 bits, one after the other.
template <class T>
void expect_no_larger_errors() {
  const TransformerSpec spec = [] {
    TransformerSpec s = tiny("gpt:2-2-32", 257);
    s.positions = 100;
    return s;
  }();
  const std::vector<StepForm> all_forms{{},
                                        {.attention = AttentionForm::tiled},
                                        {.attention = AttentionForm::fused},
                                        {.loss = LossForm::chunked},
                                        {.keep = Keep::selective_recompute(), .by_rows = true},
                                        {.keep = Keep::selective_recompute(), .mlp_tiles = 5},
                                        StepForm::min_memory()};
  std::vector<double> errors(all_forms.size());
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Device device;
    Transformer<float> reference(device.context, spec, seed);
    Transformer<T> model(device.context, spec, seed);
    const auto values = reference.parameters();
    const auto rounded = model.parameters();
    for (std::size_t i = 0; i < values.size(); ++i) {  // the same weights: those that T has
      std::vector<float> same;
      for (const T& v : device.download(rounded[i].value, rounded[i].count)) same.push_back(static_cast<float>(v));
      device.put(values[i].value, same);
    }
    const Tokens tokens(spec, 2, 80, seed);
    reference.forward_backward(device.context, tokens.batch(device.context));
    const auto expected = gradients(device, reference);
    for (std::size_t f = 0; f < errors.size(); ++f) {
      model.set_form(all_forms[f]);
      model.forward_backward(device.context, tokens.batch(device.context));
      const auto found = gradients(device, model);
      double square = 0, all = 0;
      for (std::size_t i = 0; i < found.size(); ++i)
        for (std::size_t k = 0; k < found[i].size(); ++k) {
          square += std::pow(static_cast<double>(static_cast<float>(found[i][k])) - expected[i][k], 2);
          all += std::pow(double(expected[i][k]), 2);
        }
      errors[f] += std::sqrt(square / all);
    }
  }
  for (std::size_t f = 0; f < errors.size(); ++f) {
    const StepForm& form = all_forms[f];
    EXPECT_LE(errors[f], 1.1 * errors[0]) << name_of(form.attention) << " " << name_of(form.loss);
  }
}
TEST(StepForms, ErrorsOf16BitsAreNoLargerThanTheTextbooks) {
  if (OOMLAB_SANITIZED) GTEST_SKIP() << "errors of arithmetic are the same in every build";
  expect_no_larger_errors<__half>();
  expect_no_larger_errors<__nv_bfloat16>();
}

// Along the gradient of one tensor, the loss changes as the gradient says.
TEST(TransformerGradients, PointWhereTheLossFalls) {
  for (const char* name : {"gpt:2-2-12", "bert:2-2-12", "llama:2-3-1-12-16", "llama:3-2-1-12-16"}) {
    const TransformerSpec spec = tiny(name);
    Device device;
    Transformer<float> model(device.context, spec, 2);
    const Tokens tokens(spec, 3, 9, 7);
    make_wide(device, model);
    auto parameters = model.parameters();
    model.forward_backward(device.context, tokens.batch(device.context));
    const auto all = gradients(device, model);
    std::size_t i = 0;
    for (const auto& p : parameters) {
      const auto& g = all[i++];
      const auto before = device.download(p.value, p.count);
      double square = 0;
      for (const float v : g) square += double(v) * v;
      ASSERT_GT(square, 0) << p.name;
      const double step = 1e-2 / std::sqrt(square);
      double losses[2];
      for (const int sign : {0, 1}) {
        auto moved = before;
        for (std::size_t k = 0; k < moved.size(); ++k) moved[k] += float((sign ? step : -step) * g[k]);
        device.put(p.value, moved);
        model.forward_backward(device.context, tokens.batch(device.context));
        losses[sign] = model.loss(device.context);
      }
      device.put(p.value, before);
      EXPECT_NEAR((losses[1] - losses[0]) / (2 * step) / square, 1.0, 2e-2) << name << " " << p.name;
    }
  }
}

TEST(TransformerGradients, AccumulateOverMicroBatches) {
  for (const char* name : {"gpt:2-2-16", "bert:2-2-16", "llama:2-4-2-16-24", "llama:3-4-2-16-24"}) {
    const TransformerSpec spec = tiny(name);
    Device device;
    Transformer<float> model(device.context, spec, 1);
    const Tokens whole(spec, 4, 9, 3);
    model.forward_backward(device.context, whole.batch(device.context));
    const float loss = model.loss(device.context);
    const auto expected = gradients(device, model);
    std::size_t targets = 0;
    for (const int label : whole.labels) targets += label >= 0;
    for (const auto& p : model.parameters()) fill(device.context, p.gradient, p.count, NAN);
    for (std::size_t m = 0; m < 4; ++m) {
      const std::span<const int> tokens(whole.tokens), labels(whole.labels);
      model.forward_backward(device.context,
                             make_token_batch(device.context, tokens.subspan(m * 9, 9), labels.subspan(m * 9, 9), 1, 9),
                             {.accumulate = m > 0, .total_batch = targets});
    }
    EXPECT_NEAR(model.loss(device.context), loss, 1e-5);
    const auto found = gradients(device, model);
    for (std::size_t i = 0; i < found.size(); ++i) expect_close(found[i], expected[i], 1e-5, std::to_string(i));
  }
}

}  // namespace
}  // namespace oomlab::test
