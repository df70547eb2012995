// A decoder's loss without all logits at once: in chunks that are computed again, and Liger's.

#include <gtest/gtest.h>

#include "plan/model/huggingface_config.h"
#include "plan/pytorch/huggingface.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;

// Worked out by hand: 8 rows of 2 values, 7 words. ceil(7 / 2) = 4 parts of 8 rows are 2 rows each.
TEST(HfLoss, LigersChunksAreAsLargeAsItsOwn) {
  TorchMemory memory(1, false);
  Tape tape(memory);
  Torch torch(tape, TorchDevice::cuda, {});
  Parameter weight{tape.make(7 * 2, DType::fp32, Category::parameters)}, scale{tape.make(16, DType::fp32)};
  Tensor x = torch.scale(tape.leaf(scale));
  const std::uint64_t before = memory.live().total();
  memory.forget_peak();
  Tensor loss = torch.fused_cross_entropy(x, weight, 2, 7);
  // Gradients of x and of W, losses; logits of two rows, x's part, W's part.
  EXPECT_EQ(memory.at_peak().total() - before, 4u * (16 + 14 + 8 + 2 * 7 + 2 * 2 + 14));
  EXPECT_EQ(memory.live().total() - before, 4u * (16 + 14 + 1));
  x = {};
  tape.backward(loss);
  loss = {};
  EXPECT_EQ(memory.live().total(), 4u * (14 + 14 + 16 + 16));
}

TEST(HfLoss, WithoutAllLogitsAStepNeedsLess) {
  const nn::HfShape shape = nn::hf_model("llama-3.2-1b");
  const auto peak = [&](HfLoss loss, bool lora = false) {
    HfStep step{.batch = 2,
                .seq = 2048,
                .weights = DType::bf16,
                .checkpoint = true,
                .loss = loss,
                .optimizer = HfOptimizer::sgd};
    if (lora) step.lora = HfLora{};
    return huggingface_peak(shape, step);
  };
  const std::uint64_t logits = 4096 * shape.vocabulary * 4;
  for (const bool lora : {false, true}) {
    const std::uint64_t full = peak(HfLoss::full, lora).bytes.total(),
                        chunked = peak(HfLoss::chunked, lora).bytes.total(),
                        liger = peak(HfLoss::liger, lora).bytes.total();
    EXPECT_GT(full, chunked + logits) << lora;
    EXPECT_GT(full, liger + logits) << lora;
  }
  EXPECT_TRUE(peak(HfLoss::full).checked);
  EXPECT_FALSE(peak(HfLoss::liger).checked);
  EXPECT_THROW(huggingface_peak(nn::hf_model("bert-large"), {.seq = 8, .loss = HfLoss::chunked}),
               std::invalid_argument);
}

// What remembers peaks takes steps that differ in one member for two.
TEST(HfLoss, StepsThatDifferAreDifferent) {
  const HfStep step{.lora = HfLora{}};
  HfStep other = step;
  EXPECT_EQ(step, other);
  other.lora->dropout = 0.5;
  EXPECT_NE(step, other);
  other = step;
  other.loss = HfLoss::liger;
  EXPECT_NE(step, other);
  EXPECT_TRUE(step < other || other < step);
}

}  // namespace
