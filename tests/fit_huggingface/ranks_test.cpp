// Several ranks and generate(), against sums worked out by hand: where the step of the optimizer is the peak, only what
// stays counts.

#include <gtest/gtest.h>

#include "plan/model/huggingface_config.h"
#include "plan/pytorch/generation.h"
#include "plan/pytorch/huggingface.h"
#include "plan/pytorch/reserved.h"

namespace oomlab::fit {
namespace {

// One token of a model that is nearly all weights.
const nn::HfShape& shape() {
  static const nn::HfShape model = nn::hf_model("llama-2-7b");
  return model;
}
HfStep step(HfParallel parallel, std::uint64_t count) {
  HfStep step{.batch = 1, .seq = 1, .weights = DType::bf16, .optimizer = HfOptimizer::adamw_fused};
  step.ranks = HfRanks{.parallel = parallel, .count = count};
  return step;
}
double parameters() { return double(nn::parameter_count(shape())); }
double per_parameter(std::uint64_t bytes) { return double(bytes) / parameters(); }

TEST(Ranks, DataParallelHasGradientsTwice) {
  HfStep one = step(HfParallel::ddp, 8);
  const HfPeak buckets = huggingface_peak(shape(), one);
  one.ranks->bucket_view = true;
  const HfPeak views = huggingface_peak(shape(), one);
  one.ranks.reset();
  const HfPeak alone = huggingface_peak(shape(), one);
  EXPECT_NEAR(per_parameter(buckets.bytes[Category::gradients] - alone.bytes[Category::gradients]), 2, 0.01);
  EXPECT_LT(views.bytes.total(), buckets.bytes.total());
  EXPECT_TRUE(buckets.checked);
}

TEST(Ranks, ShardsAreAShareOfEverythingThatStays) {
  for (const std::uint64_t count : {2, 8}) {
    const HfPeak peak = huggingface_peak(shape(), step(HfParallel::fsdp2, count));
    EXPECT_NEAR(per_parameter(peak.bytes[Category::optimizer]), 4.0 / double(count), 0.01);
    EXPECT_LT(per_parameter(peak.bytes[Category::parameters]), 2);
  }
}

// Embedding and norms are on every rank; of the head, and of a layer, each has a part, with its gradient and its moments.
TEST(Ranks, TensorParallelRanksHaveAPartOfEachMatrix) {
  const double whole = 32000.0 * 4096 + 65 * 4096;
  for (const std::uint64_t count : {2, 8}) {
    const HfPeak peak = huggingface_peak(shape(), step(HfParallel::tensor, count));
    const double mine = whole + (parameters() - whole) / double(count);
    EXPECT_NEAR(double(peak.bytes[Category::parameters]) / mine, 2, 0.001);
    EXPECT_NEAR(double(peak.bytes[Category::optimizer]) / mine, 4, 0.001);
    EXPECT_TRUE(peak.checked);
  }
  // AdamW's list of roots is made for what is divided, then for what is whole.
  HfStep lists = step(HfParallel::tensor, 2);
  lists.optimizer = HfOptimizer::adamw_foreach;
  const HfPeak peak = huggingface_peak(shape(), lists);
  const double divided = (parameters() - whole) / 2;
  EXPECT_STREQ(peak.moment, "optimizer's step");
  EXPECT_NEAR(double(peak.bytes[Category::gradients]) / (2 * (whole + divided)), 1, 0.001);
  EXPECT_NEAR(double(peak.bytes[Category::optimizer]) / (4 * (whole + divided) + 2 * divided), 1, 0.001);
}

// All experts are there; a token's activations are those of the experts that it goes to.
TEST(Experts, AllAreThereAndAFewAreAtWork) {
  nn::HfShape mixtral = nn::hf_model("mixtral-8x7b");
  HfStep one{.batch = 1, .seq = 1024, .weights = DType::bf16, .optimizer = HfOptimizer::sgd};
  const HfPeak two = huggingface_peak(mixtral, one);
  EXPECT_EQ(two.bytes[Category::parameters], 2u * 46'702'792'704u);
  EXPECT_TRUE(two.checked);
  // With so many tokens to choose from it is fullest in the loss, where all that is kept is there. Of a pair, in BF16:
  // what goes in, gate and up, silu, their product, what comes out.
  mixtral.vocabulary = 2'000'000;
  mixtral.layers = 2;
  one.seq = 4096;
  const auto kept = [&](std::uint64_t active) {
    mixtral.active = active;
    return double(huggingface_peak(mixtral, one).bytes[Category::activations]);
  };
  EXPECT_NEAR((kept(4) - kept(2)) / (2 * 4096 * 2 * 2 * (2 * 4096.0 + 4 * 14336)), 1, 0.01);
  for (HfStep other : {HfStep{.lora = HfLora{}}, HfStep{.optimizer = HfOptimizer::adafactor}})
    EXPECT_THROW((void)huggingface_peak(mixtral, other), std::invalid_argument);
  // After the prompt a GPU copies the experts' weights for each token: of one sequence two experts, of 16 32.
  HfGeneration asked{.batch = 1, .prompt = 1, .new_tokens = 2};
  asked.weights = DType::bf16;
  mixtral.active = 2;
  const auto activations = [&] {
    return double(huggingface_generation_peak(mixtral, asked).bytes[Category::activations]);
  };
  const double alone = activations();
  asked.batch = 16;
  EXPECT_NEAR((activations() - alone) / (15 * 2 * 3 * 2 * 4096.0 * 14336), 1, 0.02);
}

TEST(Ranks, ZeroDividesTheStateThenTheGradientsThenTheWeights) {
  const double n = 4;
  for (const HfParallel parallel : {HfParallel::zero1, HfParallel::zero2, HfParallel::zero3}) {
    HfStep with = step(parallel, 4);
    with.ranks->bucket = 1'000'000;
    const HfPeak peak = huggingface_peak(shape(), with);
    EXPECT_FALSE(peak.checked);
    EXPECT_EQ(peak.host, 0u);
    EXPECT_NEAR(per_parameter(peak.bytes[Category::optimizer]), 12 / n, 0.01);
    if (parallel == HfParallel::zero2) {
      // The step's: a share in 16 bits, flat once more, and in FP32.
      EXPECT_STREQ(peak.moment, "optimizer's step");
      EXPECT_NEAR(per_parameter(peak.bytes[Category::gradients]), 8 / n, 0.01);
    }
    if (parallel == HfParallel::zero1) {
      EXPECT_GT(per_parameter(peak.bytes[Category::gradients]), 1.9) << "whole until the backward pass is over";
    }
    if (parallel != HfParallel::zero3) {
      EXPECT_NEAR(per_parameter(peak.bytes[Category::parameters]), 2, 0.01);
    } else {
      EXPECT_LT(per_parameter(peak.bytes[Category::parameters]), 2);
    }
  }
}

TEST(Ranks, WhatIsOffloadedIsInTheHost) {
  HfStep with = step(HfParallel::zero3, 4);
  with.ranks->offload_optimizer = true;
  const HfPeak state = huggingface_peak(shape(), with);
  EXPECT_EQ(state.bytes[Category::optimizer], 0u);
  EXPECT_NEAR(per_parameter(state.host), 18 / 4.0, 0.01);
  with.ranks->offload_parameters = true;
  const HfPeak all = huggingface_peak(shape(), with);
  EXPECT_NEAR(per_parameter(all.host), 20 / 4.0, 0.01);
  EXPECT_NEAR(per_parameter(state.bytes.total() - all.bytes.total()), 2 / 4.0, 0.01);
}

TEST(Ranks, TheDefaultBucketOfFiveHundredMillionIsSeen) {
  HfStep with = step(HfParallel::zero2, 4);
  with.ranks->offload_optimizer = true;  // the backward pass is the peak then
  const std::uint64_t one = huggingface_peak(shape(), with).bytes.total();
  with.ranks->overlap = true;
  EXPECT_EQ(huggingface_peak(shape(), with).bytes.total() - one, round_to_granule(1'000'000'000))
      << "overlap_comm fills one while the other is reduced";
  with.ranks->bucket = 100'000'000;
  EXPECT_LT(huggingface_peak(shape(), with).bytes.total(), one);
}

TEST(Generation, ACacheGrowsAndIsThereTwiceForALayer) {
  const nn::HfShape& model = shape();
  HfGeneration with{.batch = 4, .prompt = 16, .new_tokens = 2001, .weights = DType::bf16};
  const HfPeak grown = huggingface_generation_peak(model, with);
  EXPECT_STREQ(grown.moment, "decoding");
  const double token = 2.0 * 2 * double(model.keys()) * 4;  // keys and values of four sequences
  const double whole = token * 2016 * double(model.layers);
  EXPECT_GT(double(grown.bytes[Category::activations]), whole);
  EXPECT_LT(double(grown.bytes[Category::activations]), whole * (1 + 3.0 / double(model.layers)));
  with.beams = 2;
  EXPECT_GT(double(huggingface_generation_peak(model, with).bytes[Category::activations]), 1.9 * whole);
  with = {.batch = 4, .prompt = 2000, .new_tokens = 1, .weights = DType::bf16};
  EXPECT_STREQ(huggingface_generation_peak(model, with).moment, "prefill");
  EXPECT_EQ(grown.bytes[Category::gradients] + grown.bytes[Category::optimizer], 0u);
}

// Pieces of every length: the reserved bytes of a cache that grows are more than its live bytes.
TEST(Generation, GrowthIsReplayed) {
  const HfGeneration with{.batch = 4, .prompt = 16, .new_tokens = 200, .weights = DType::bf16};
  const HfPeak peak = huggingface_generation_peak(shape(), with, true);
  const Reserved reserved = reserved_by_replay(peak.events, TorchSegments::native);
  EXPECT_EQ(reserved.live, peak.bytes.total());
  EXPECT_GT(reserved.peak, reserved.live);
  EXPECT_EQ(huggingface_generation_peak(shape(), with).bytes.total(), peak.bytes.total());
}

}  // namespace
}  // namespace oomlab::fit
