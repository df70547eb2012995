// What the loss scale is for: gradients that FP16 would flush to zero.

#include "precision.h"

#include <gtest/gtest.h>

#include "../../../tests/device.h"

namespace oomlab::mixed_precision {
namespace {

TEST(LossScale, BringsSmallGradientsBack) {
  SKIP_WITHOUT_DEVICE();
  Config config;
  const nn::TransformerSpec spec = nn::parse_transformer("gpt:2-2-32");
  const data::TextSampler text = text_for(spec, 32, false);
  const auto shares = std::make_shared<GradientShares>();
  for (const Precision precision : {Precision::fp32, Precision::fp16, Precision::bf16, Precision::pure_fp16}) {
    Ledger ledger;
    with_context(config, kUnlimited, ledger, [&](Context& context) {
      const auto training = make_training(context, spec, text, 8, precision, shares);
      training->step();
      EXPECT_GT(training->figure(), 0);
    });
  }
  // Below FP16's normal numbers: a few percent of 35,000. (Those that become zero are single ones at this size.)
  EXPECT_GT(shares->damaged[Precision::pure_fp16], 0.005);
  EXPECT_LT(shares->damaged[Precision::fp16], shares->damaged[Precision::pure_fp16] / 10);
  EXPECT_LT(shares->damaged[Precision::bf16], shares->damaged[Precision::pure_fp16] / 10);
}

}  // namespace
}  // namespace oomlab::mixed_precision
