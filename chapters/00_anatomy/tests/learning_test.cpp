// The step that this chapter takes apart is one that learns: the loss falls, with every optimizer, also where layers
// are wide.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "../../../tests/device.h"
#include "train/image_training.h"

namespace {

using namespace oomlab;
using namespace oomlab::train;

std::vector<double> losses(const char* model, nn::UpdateRule kind) {
  constexpr std::size_t kSteps = 8;
  const nn::MlpSpec spec = nn::parse_model(model);
  std::vector<double> figures;
  Ledger ledger;
  with_context(Config{}, kUnlimited, ledger, [&](Context& context) {
    ImageTraining training(context, data::digits(), spec, kind, 64);
    for (std::size_t i = 0; i < kSteps; ++i) {
      training.step();
      figures.push_back(training.figure());
    }
  });
  return figures;
}

TEST(Learning, TheLossFallsAtEveryWidth) {
  SKIP_WITHOUT_DEVICE();
  if (OOMLAB_ROUNDS < 10) GTEST_SKIP() << "about numbers, which are the same in check mode";
  for (const char* const model : {"mlp:64-512-256-10", "mlp:512-768x6-10", "mlp:64-128-256-512-1024-2048-10"})
    for (const auto kind : {nn::UpdateRule::adamw, nn::UpdateRule::sgd}) {
      const std::vector<double> figures = losses(model, kind);
      EXPECT_LT(figures.back(), 0.95 * figures.front()) << model << ", " << nn::name_of(kind);
      EXPECT_LT(std::ranges::max(figures), 1.1 * figures.front()) << model << ", " << nn::name_of(kind);
    }
}

}  // namespace
