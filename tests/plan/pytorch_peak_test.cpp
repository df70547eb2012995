// PyTorch's peak in closed form: against sums written out by hand, and what must hold for any shape. Against PyTorch
// itself: bench/peers/pytorch_training.py, whose published results published_test.py looks at.

#include <gtest/gtest.h>

#include <random>

#include "plan/pytorch/peak.h"

namespace oomlab::fit {
namespace {

using nn::parse_transformer;
using nn::TransformerSpec;

std::uint64_t total(const TransformerSpec& spec, const PyTorchStep& step) {
  return pytorch_peak(spec, step).bytes.total();
}

TEST(PyTorchPeak, GptInFp32IsWhatAutogradSaves) {
  const TransformerSpec spec = parse_transformer("gpt:6-4-128");
  const std::uint64_t r = 8 * 256, c = 128, v = 258, h = 4;
  // Of a layer: two norms' outputs, which products read; q, k, v; attention's output; both sums; 4 + 4 of the MLP.
  const std::uint64_t layer = 4 * (16 * r * c + r * h + 4 * r);
  // The embeddings' sum, the last norm, and three of the logits' size: log-softmax, its gradient, the logits' gradient.
  const std::uint64_t ends = 4 * (2 * r * c + 2 * r + 3 * r * v);
  const PyTorchPeak peak = pytorch_peak(spec, {.batch = 8, .seq = 256});
  EXPECT_EQ(peak.bytes[Category::activations], 6 * layer + ends);
  EXPECT_EQ(peak.bytes[Category::parameters], 4 * spec.parameters());
  EXPECT_EQ(peak.bytes[Category::optimizer], 8 * spec.parameters());
  EXPECT_EQ(peak.bytes[Category::gradients], 0u);
  EXPECT_EQ(peak.bytes[Category::data], 16 * r);
  EXPECT_STREQ(peak.moment, "loss");
  EXPECT_TRUE(peak.checked);
}

TEST(PyTorchPeak, AutocastKeepsCopiesOfInputsAndWeights) {
  const TransformerSpec spec = parse_transformer("gpt:6-4-128");
  const std::uint64_t r = 8 * 256, c = 128, v = 258, h = 4;
  // In 16 bits: two norms' copies, q, k, v, attention's output, 4 + 4 of the MLP, 12 C² of weights; in 32: two sums.
  const std::uint64_t layer = 2 * (14 * r * c + 12 * c * c) + 4 * (2 * r * c + r * h + 4 * r);
  const std::uint64_t ends = 4 * r * c + 2 * (r * c + v * c) + 4 * (2 * r + 3 * r * v);
  EXPECT_EQ(pytorch_peak(spec, {.batch = 8, .seq = 256, .precision = DType::bf16}).bytes[Category::activations],
            6 * layer + ends);
}

TEST(PyTorchPeak, LlamaKeepsCopiesForEveryProductThatReads) {
  const TransformerSpec spec = parse_transformer("llama:5-4-2-128-344");
  const std::uint64_t r = 4 * 512, c = 128, k = 64, f = 344, v = 258, h = 4, e = 2;
  // x, x · rsqrt, its copies for q, k and v, q and k with positions, v, the output; the same again before gate and up.
  const std::uint64_t layer = 4 * (4 * r * c + 2 * r + r * h) + e * ((3 + 3 + 1 + 2) * r * c + 4 * r * f) +
                              e * (2 * c * c + 2 * c * k + 3 * c * f);
  const std::uint64_t ends = 4 * (2 * r * c + r) + e * (r * c + v * c) + 12 * r * v + 2 * 4 * 512 * 32;
  EXPECT_EQ(pytorch_peak(spec, {.batch = 4, .seq = 512, .precision = DType::bf16}).bytes[Category::activations],
            5 * layer + ends);
}

TEST(PyTorchPeak, OptimizersStep) {  // one token: nothing but parameters matters
  const TransformerSpec spec = parse_transformer("gpt:4-4-128");
  const std::uint64_t p = spec.parameters();
  EXPECT_EQ(total(spec, {}), 20 * p + 16);
  EXPECT_STREQ(pytorch_peak(spec, {}).moment, "optimizer's step");
  const PyTorchPeak fused = pytorch_peak(spec, {.optimizer = TorchOptimizer::adamw_fused});
  EXPECT_EQ(fused.bytes[Category::optimizer], 8 * p);
  EXPECT_GE(fused.bytes.total(), 16 * p + 16);
  const PyTorchPeak small = pytorch_peak(spec, {.optimizer = TorchOptimizer::adamw_8bit});
  EXPECT_EQ(small.bytes[Category::optimizer], 2 * p + p / 256 * 8);
}

TEST(PyTorchPeak, UncheckedWays) {
  const TransformerSpec spec = parse_transformer("bert:2-2-64");
  for (const bool checkpoint : {false, true}) {
    EXPECT_TRUE(pytorch_peak(spec, {.precision = DType::bf16, .checkpoint = checkpoint}).checked);
    EXPECT_FALSE(pytorch_peak(spec, {.precision = DType::fp16, .checkpoint = checkpoint}).checked);
    EXPECT_FALSE(pytorch_peak(spec, {.checkpoint = checkpoint, .optimizer = TorchOptimizer::adamw_8bit}).checked);
  }
}

// What one layer more adds is the same from the third layer on, and a layer with everything kept adds more than one
// that is computed again. In each of these walks everything that was kept must be freed, or run() throws.
TEST(PyTorchPeak, LayersAddTheSame) {
  std::mt19937 random(5);
  const auto from = [&](std::uint64_t least, std::uint64_t most) { return least + random() % (most - least + 1); };
  for (int round = 0; round < 200; ++round) {
    TransformerSpec spec = parse_transformer(round % 3 == 0   ? "gpt:3-4-32"
                                             : round % 3 == 1 ? "bert:3-4-32"
                                                              : "llama:3-4-2-32-48");
    spec.heads = from(1, 4) * 2;
    spec.width = spec.heads * 2 * from(1, 16);
    if (spec.llama()) spec.kv_heads = from(0, 1) ? spec.heads : spec.heads / 2, spec.mlp = from(1, 3 * spec.width);
    spec.vocabulary = from(2, 500);
    if (!spec.bert()) spec.tied = from(0, 1);
    PyTorchStep step{.batch = from(1, 8), .seq = from(8, 200), .optimizer = TorchOptimizer::adamw_fused};
    if (from(0, 1)) step.precision = DType::bf16;
    const auto added = [&](std::uint64_t layers) {
      TransformerSpec less = spec, more = spec;
      less.layers = layers, more.layers = layers + 1;
      return total(more, step) - total(less, step);
    };
    EXPECT_EQ(added(400), added(401)) << round;
    const std::uint64_t kept = added(400);
    step.checkpoint = true;
    EXPECT_EQ(added(400), added(401)) << round;
    EXPECT_LT(added(400), kept + 16 * spec.parameters()) << round;
    EXPECT_EQ(pytorch_peak(spec, step).bytes[Category::parameters], 4 * spec.parameters());
    spec.layers = 1;
    EXPECT_GT(total(spec, step), 16 * spec.parameters());
  }
}

TEST(PyTorchPeak, CheckpointKeepsLayersInputs) {  // so many layers that nothing else matters
  TransformerSpec spec = parse_transformer("gpt:1-4-64");
  const PyTorchStep step{.batch = 16, .seq = 1024, .checkpoint = true, .optimizer = TorchOptimizer::adamw_fused};
  spec.layers = 1000;
  const std::uint64_t less = total(spec, step), of_layer = 4 * (12 * 64 * 64 + 13 * 64);
  spec.layers = 1001;
  EXPECT_EQ(total(spec, step) - less, 3 * of_layer + 4 * 16 * 1024 * 64);  // no gradient of its own yet
}

TEST(PyTorchPeak, BadSizes) {
  TransformerSpec spec = parse_transformer("gpt2");
  EXPECT_THROW((void)pytorch_peak(spec, {.batch = 0}), std::invalid_argument);
  EXPECT_THROW((void)pytorch_peak(spec, {.seq = 0}), std::invalid_argument);
  EXPECT_THROW((void)pytorch_peak(spec, {.batch = UINT64_MAX / 2, .seq = 3}), std::length_error);
  EXPECT_THROW((void)pytorch_peak(spec, {.batch = std::uint64_t(1) << 50}), std::length_error);
  spec.layers = 0;
  EXPECT_THROW((void)pytorch_peak(spec, {}), std::invalid_argument);
  spec = parse_transformer("bert-base");
  spec.tied = false;
  EXPECT_THROW((void)pytorch_peak(spec, {}), std::invalid_argument);
}

TEST(PyTorchPeak, QuickForAnyNumberOfLayers) {
  TransformerSpec spec = parse_transformer("llama-3.1-8b");
  spec.layers = 10'000;
  std::uint64_t sum = 0;
  for (int i = 0; i < 10; ++i) sum += total(spec, {.batch = 1, .seq = std::uint64_t(i) + 1});
  EXPECT_GT(sum, 0u);
}

}  // namespace
}  // namespace oomlab::fit
