// The closed form against the ledger: to the byte, split included.

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "nn/models/mlp.h"
#include "nn/ops/values.h"
#include "runs.h"

namespace oomlab::test {
namespace {

using namespace nn;

void expect_equal(const ByCategory& measured, const ByCategory& predicted, const std::string& what) {
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    ASSERT_EQ(measured.bytes[c], predicted.bytes[c]) << name_of(static_cast<Category>(c)) << ", " << what;
}

struct Case {
  MlpSpec spec;
  std::size_t batch;
  UpdateRule optimizer;
  std::string describe() const {
    std::string text =
        std::string(name_of(optimizer)) + " " + name_of(spec.activation) + " batch " + std::to_string(batch);
    for (const std::size_t w : spec.widths) text.append(" ").append(std::to_string(w));
    return text;
  }
};

Case random_case(std::mt19937& random) {
  const auto up_to = [&](std::size_t n) { return 1 + random() % n; };
  const std::size_t scales[] = {1, 4, 40, 300};
  const UpdateRule rules[] = {UpdateRule::sgd, UpdateRule::momentum, UpdateRule::adamw};
  Case c{{"random", {}, static_cast<Activation>(random() % 3)}, 1, rules[random() % 3]};
  const std::size_t layers = up_to(6);
  for (std::size_t l = 0; l <= layers; ++l) c.spec.widths.push_back(up_to(scales[random() % 4]));
  c.batch = up_to(scales[random() % 4]);
  return c;
}

TEST(Bytes, TrainingPeakIsAsPredicted) {
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const Case c = random_case(random);
    Ledger ledger;
    train(ledger, c.spec, c.batch, c.optimizer, 2);
    expect_equal(without_workspace(ledger.peak_by_category()), predict_training(c.spec, c.batch, c.optimizer).at_peak,
                 c.describe());
    ASSERT_EQ(ledger.live_bytes(), 0u);
  }
}

TEST(Bytes, ResidentIsAsPredicted) {
  std::mt19937 random(2);
  for (int i = 0; i < 50; ++i) {
    const Case c = random_case(random);
    CudaResource resource;
    Ledger ledger;
    Context context(resource, ledger);
    {
      const Mlp model(context, c.spec, 1, false);
      expect_equal(without_workspace(ledger.live_by_category()), resident_for_inference(c.spec), c.describe());
    }
    Mlp model(context, c.spec, 1, true);
    const auto optimizer = make_optimizer(context, model, c.optimizer);
    expect_equal(without_workspace(ledger.live_by_category()), resident_for_training(c.spec, c.optimizer),
                 c.describe());
  }
}

TEST(Bytes, InferencePeakIsAsPredicted) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const Case c = random_case(random);
    CudaResource resource;
    Ledger ledger;
    Context context(resource, ledger);
    Mlp model(context, c.spec, 1, false);
    {
      auto input = context.buffer<float>(c.batch * c.spec.inputs(), Category::activations, "input");
      fill(context, input.data(), input.size(), 0.5f);
      const auto logits = model.forward(context, std::move(input), c.batch);
    }
    expect_equal(without_workspace(ledger.peak_by_category()), predict_inference(c.spec, c.batch).at_peak,
                 c.describe());

    ledger.reset_peak();
    model.count_correct(context, zero_batch(context, c.spec, c.batch));
    expect_equal(without_workspace(ledger.peak_by_category()),
                 predict_count_correct(c.spec, c.batch, resident_for_inference(c.spec)).at_peak, c.describe());
  }
}

TEST(Bytes, TrainingThenEvaluating) {
  const MlpSpec spec = parse_model("mlp-small");
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  Mlp model(context, spec, 1, true);
  auto optimizer = make_optimizer(context, model, UpdateRule::adamw);
  model.train_step(context, zero_batch(context, spec, 32), optimizer);
  model.count_correct(context, zero_batch(context, spec, 360));
  expect_equal(without_workspace(ledger.peak_by_category()),
               later_peak(predict_training(spec, 32, UpdateRule::adamw),
                          predict_count_correct(spec, 360, resident_for_training(spec, UpdateRule::adamw)))
                   .at_peak,
               "both");
}

// By hand, for one model: 2 → 3 → 1 classes, batch 1: every buffer is one granule.
TEST(Bytes, ByHand) {
  const MlpSpec spec{"tiny", {2, 3, 1}, Activation::relu};
  const std::size_t granule = 512;
  const PeakBytes peak = predict_training(spec, 1, UpdateRule::adamw);
  EXPECT_EQ(peak.at_peak[Category::parameters], 4 * granule);
  EXPECT_EQ(peak.at_peak[Category::gradients], 4 * granule);
  EXPECT_EQ(peak.at_peak[Category::optimizer], 8 * granule);
  EXPECT_EQ(peak.at_peak[Category::activations], 3 * granule);  // input, hidden, logits
  EXPECT_EQ(peak.at_peak[Category::workspace], 2 * granule);    // loss, row losses
  EXPECT_EQ(peak.at_peak[Category::data], granule);             // labels
}

TEST(Bytes, SizesThatDoNotFitAreRefused) {
  const MlpSpec spec{"huge", {std::size_t(1) << 31, std::size_t(1) << 31, 10}, Activation::relu};
  EXPECT_THROW(predict_training(spec, 1, UpdateRule::adamw), std::length_error);
  EXPECT_THROW(predict_training(parse_model("mlp"), std::size_t(1) << 60, UpdateRule::sgd), std::length_error);
}

}  // namespace
}  // namespace oomlab::test
